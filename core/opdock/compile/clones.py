"""Removing clones that nobody needs, soundly: views, later writes to either side, ``out=``, returned inputs.

``c = clone(s)`` may go when the one block of memory that would then hold both sides, C (all that may alias ``c``) and
S (all that may alias ``s``), always holds what is read. One walk over the later users of both sides tracks whose
content the block would have. At the clone it is both; a write to C leaves C's alone, a write to S leaves S's alone;
copying one whole side onto the other makes it both again. Every read needs its side. At the end the caller reads
every constant, and every input that was not given away.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from opdock.compile import fakes
from opdock.compile.aliases import FUNCTIONAL, OVERWRITE, Aliases, aten, is_higher_order, storages_of
from opdock.compile.layouts import disjoint, same_layout, storage_of

if TYPE_CHECKING:
    from opdock.compile.aliases import Root

CLONE = aten.clone.default
_MOVES_STORAGE = {"set_", "resize_", "resize_as_", "resize_storage_bytes_", "as_strided_"}
_ASYNCHRONOUS = {"_c10d_functional", "_c10d_functional_autograd", "symm_mem"}  # may read until wait_tensor
_C, _S = 1, 2  # whose content the block has


def count_clones(graph: fx.Graph) -> int:
    """Return how many clones a graph has."""
    return len(graph.find_nodes(op="call_function", target=CLONE))


def remove_clones(graph: fx.Graph, donated: Collection[int] = ()) -> int:
    """Remove every clone whose removal no one can see, until there is none; return how many.

    Inductor's reinplacing may run afterwards: around functionalised higher-order operators it misjudges aliases that
    a removal can create, so clones stay there where it would.

    Args:
        graph: lowered, fake values in ``meta["val"]``; nodes are in the order in which they run. It is changed.
        donated: numbers of the inputs that the program gave away.
    """
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    kept = {s for k, n in enumerate(inputs) if k not in donated for s in storages_of(n)}
    given: set[Root] = {inputs[k] for k in donated if not storages_of(inputs[k]) & kept}
    removed, before = 0, -1
    while before != removed:
        before = removed
        analysis = _Walk(graph, given)
        for clone in graph.find_nodes(op="call_function", target=CLONE):
            if not clone.users or analysis.is_removable(clone):
                analysis.aliases.merge(clone, clone.args[0])
                _replace(graph, clone, analysis.index)
                removed += 1
        for copy in graph.find_nodes(op="call_function", target=aten.copy_.default):
            if copy.args[0] is copy.args[1]:  # what is left of a copy between the two sides
                copy.replace_all_uses_with(copy.args[0])
                graph.erase_node(copy)
    return removed


def _replace(graph: fx.Graph, clone: fx.Node, index: dict[fx.Node, int]) -> None:
    """Put the source in place of the clone, and the fake values of its aliases into the source's storage."""
    source: Any = clone.args[0]
    old = storage_of(clone.meta.get("val"))
    clone.replace_all_uses_with(source)
    graph.erase_node(clone)
    for node in graph.nodes:
        if node.op == "call_function" and index[node] > index[clone] and old in storages_of(node):
            node.meta["val"] = fakes.moved(node.meta["val"], old, source.meta["val"])


class _Walk:
    """What is the same for all clones of a graph while no clone is removed."""

    def __init__(self, graph: fx.Graph, given: set[Root]) -> None:
        self.aliases, self.given = Aliases(graph), given
        self.index = {n: i for i, n in enumerate(graph.nodes)}
        self.output = graph.output_node()

    def is_removable(self, clone: fx.Node) -> bool:
        """Return whether nobody can see the difference."""
        source: Any = clone.args[0]
        copied: Any = clone.meta.get("val")
        original: Any = source.meta.get("val")
        if storage_of(copied) is None or storage_of(original) is None or not same_layout(copied, original):
            return False
        roots = self.aliases.roots[source]
        c_side, s_side = self.aliases.values_in(self.aliases.roots[clone]), self.aliases.values_in(roots)
        fixed = [r for r in roots if self._is_fixed(r)]
        wrapped = any(isinstance(r, fx.Node) and r.op == "call_function" for r in roots)
        outputs = set(self.aliases.reads[self.output])
        if c_side & outputs and (fixed or wrapped or s_side & outputs):
            return False  # an output would share memory with an input or another output
        s_side = {n for n in s_side if not _apart(n, original)}
        return _Block(self, clone, c_side, s_side).holds(at_the_end=bool(fixed))

    def _is_fixed(self, root: Root) -> bool:
        """Return whether somebody outside the graph reads this memory afterwards."""
        if isinstance(root, fx.Node):
            return root.op == "placeholder" and root not in self.given
        return bool(root[0] == "attr")


def _apart(node: fx.Node, original: torch.Tensor) -> bool:
    """Return whether a value lies elsewhere in the storage of ``original``."""
    value: Any = node.meta.get("val")
    return storage_of(value) == storage_of(original) and disjoint(value, original)


class _Block:
    """The one block that would hold both sides of a clone."""

    def __init__(self, walk: _Walk, clone: fx.Node, c_side: set[fx.Node], s_side: set[fx.Node]) -> None:
        self.walk, self.value, self.c_side, self.s_side = walk, clone.meta["val"], c_side, s_side
        reads, writes, index = walk.aliases.reads, walk.aliases.writes, walk.index
        both = c_side | s_side
        users = {u for n in both for u in n.users if index[u] > index[clone] and u in reads}
        self.events = sorted(users, key=index.__getitem__)
        self.is_written = any(n in both for u in self.events for n in writes[u])
        self.is_copied = any(u.target is aten.copy_.default and u.args[0] is n for n in both for u in n.users)

    def holds(self, *, at_the_end: bool) -> bool:
        """Return whether every read, and the caller's ``at_the_end``, finds the content that it would find now."""
        state = _C | _S
        for event in self.events:
            reads, writes = self.walk.aliases.reads[event], self.walk.aliases.writes[event]
            c_read, s_read = self.c_side.intersection(reads), self.s_side.intersection(reads)
            c_written, s_written = self.c_side.intersection(writes), self.s_side.intersection(writes)
            if (
                self._is_refused(event, c_read, s_read)
                or (c_read and not state & _C)
                or (s_read and not state & _S)
                or (c_written and s_written)
            ):
                return False
            if (c_written and s_read) or (s_written and c_read):  # one kernel would read what it writes
                if not all(map(self._is_whole, c_read | s_read | c_written | s_written)):
                    return False
                if event.target is aten.copy_.default:
                    state = _C | _S
                    continue
                if torch.Tag.pointwise not in getattr(event.target, "tags", ()):
                    return False
            renews = event.target in OVERWRITE and self._is_whole(event.args[0])
            if c_written:
                state = _C if state & _C or renews else 0
            if s_written:
                state = _S if state & _S or renews else 0
        return not at_the_end or bool(state & _S)

    def _is_refused(self, event: fx.Node, c_read: set[fx.Node], s_read: set[fx.Node]) -> bool:
        """Return whether a node does what no walk over reads and writes can follow."""
        if getattr(event.target, "_opname", "") in _MOVES_STORAGE:
            return True
        if self.is_written and getattr(event.target, "namespace", "") in _ASYNCHRONOUS:
            return True
        confuses_reinplacing = bool((c_read and s_read) or (self.is_copied and (c_read or s_read)))
        return is_higher_order(event, FUNCTIONAL) and confuses_reinplacing

    def _is_whole(self, node: Any) -> bool:
        """Return whether a value is all of one side, element for element."""
        value = node.meta.get("val")
        return storage_of(value) is not None and same_layout(value, self.value)
