"""What the other passes leave behind: dead nodes, an order that is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch._ops import HigherOrderOperator

from opdock.compile.nodes import is_mutable

if TYPE_CHECKING:
    from torch import fx


def clean_up(graph: fx.Graph) -> None:
    """Sort the nodes so that each follows its arguments, drop those that nobody needs, and check the graph.

    A node that writes, or may, is needed. The order of nodes that is right already stays.
    """
    from torch._inductor.pattern_matcher import stable_topological_sort

    stable_topological_sort(graph)
    graph.eliminate_dead_code(is_impure_node=_may_matter)
    graph.lint()


def _may_matter(node: fx.Node) -> bool:
    if node.op != "call_function":
        return node.op in ("placeholder", "output")
    return node.is_impure() or is_mutable(node) or isinstance(node.target, HigherOrderOperator)
