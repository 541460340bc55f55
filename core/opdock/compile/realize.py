"""Making Inductor compute a value before the memory that it reads is written.

Inductor computes element-wise values where they are used. When an opaque kernel writes a buffer, it first computes what
is pending and reads that buffer; but for some kernels it does so after it has put the kernel in line (torch 2.13,
``FallbackKernel``), and what was pending reads what the kernel wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from opdock.compile.aliases import FUNCTIONAL, Aliases, aten, is_higher_order

if TYPE_CHECKING:
    from torch import fx

REALIZE = "inductor_realize_to_strides"
"""Key in a node's ``meta``: Inductor computes the value at once."""


# Inductor's reinplacing, which runs later, makes these anew.
_MADE_ANEW = (
    aten.slice_scatter.default,
    aten.select_scatter.default,
    aten.diagonal_scatter.default,
    aten.as_strided_scatter.default,
)


def realize_before_writes(graph: fx.Graph) -> None:
    """Mark every value that depends on memory which an opaque kernel writes, and is used after that.

    Args:
        graph: lowered and free of needless clones; no value in it changes.
    """
    aliases = Aliases(graph)
    order = {node: i for i, node in enumerate(graph.nodes)}
    for kernel in graph.nodes:
        if getattr(kernel.target, "namespace", "") in ("aten", "prims"):
            continue
        writes = aliases.writes.get(kernel, [])
        if is_higher_order(kernel, FUNCTIONAL):  # Inductor's reinplacing may let it write what it gets
            writes = aliases.reads[kernel]
        written = aliases.of(writes)
        if not written:
            continue
        views = aliases.values_in(written)
        waiting = [user for view in views for user in view.users]
        seen: set[fx.Node] = set()
        while waiting:
            node = waiting.pop()
            if node in seen or node in views or order.get(node, -1) >= order[kernel]:
                continue
            seen.add(node)
            late = [user for user in node.users if order.get(user, -1) > order[kernel]]
            if late:
                _realize(node, late)
            if REALIZE not in node.meta:  # what is computed at once reads nothing later
                waiting += node.users


def _realize(node: fx.Node, late: Sequence[fx.Node]) -> None:
    if node.target not in _MADE_ANEW:
        node.meta[REALIZE] = True
        return
    with node.graph.inserting_after(node):
        held = node.graph.call_function(aten.alias.default, (node,))
    held.meta = {**node.meta, REALIZE: True}
    for user in late:
        user.replace_input_with(node, held)
