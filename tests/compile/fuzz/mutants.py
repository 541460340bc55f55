"""The passes with one rule taken out: the fuzzer has to notice each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import torch
from torch import fx

from opdock.compile import aliases, cleanup, clones, donation, fakes, passes

Mutant = Callable[[], contextlib.AbstractContextManager[Any]]
aten = torch.ops.aten


def _always(where: Any, name: str, value: Any) -> Mutant:
    return lambda: mock.patch.object(where, name, return_value=value)


def _no_views(name: str) -> Mutant:
    """Take the results of these ops for memory of their own."""

    @contextlib.contextmanager
    def applied() -> Iterator[None]:
        visit = aliases.Aliases._visit_op

        def forgetful(self: Any, node: fx.Node) -> None:
            visit(self, node)
            if getattr(node.target, "_opname", "") in name.split():
                self.roots[node] = {(node, 0)}

        with mock.patch.object(aliases.Aliases, "_visit_op", forgetful):
            yield

    return applied


def _positional_only() -> contextlib.AbstractContextManager[Any]:
    bind = aliases._bind
    return mock.patch.object(aliases, "_bind", lambda n: [b for b in bind(n) if b[1] not in list(n.kwargs.values())])


@contextlib.contextmanager
def _more_overwrites() -> Iterator[None]:
    more = {*aliases.OVERWRITE, aten.add_.Tensor, aten.mul_.Tensor}
    with mock.patch.object(aliases, "OVERWRITE", more), mock.patch.object(clones, "OVERWRITE", more):
        yield


def _all_inputs(graph: fx.Graph) -> set[int]:
    return set(range(sum(n.op == "placeholder" for n in graph.nodes)))


def _no_writes(node: fx.Node) -> bool:
    return node.op in ("placeholder", "output")


MUTANTS: Mapping[str, Mutant] = {
    "views by schema are forgotten": _no_views("view slice select permute split expand"),
    "views that no schema shows are forgotten": _always(aliases, "storages_of", set()),
    "a kernel that returns its argument returns a new value": _no_views("returning"),
    "writes by keyword are forgotten": _positional_only,
    "inputs and constants may be overwritten": _always(clones._Walk, "_is_fixed", value=False),
    "layouts need not be equal": _always(clones, "same_layout", value=True),
    "everything lies elsewhere": _always(clones, "_apart", value=True),
    "each part counts as the whole": _always(clones._Block, "_is_whole", value=True),
    "an addition counts as an overwriting": _more_overwrites,
    "nothing is refused outright": _always(clones._Block, "_is_refused", value=False),
    "fake values are left where they were": lambda: mock.patch.object(fakes, "moved", lambda value, *_: value),
    "every input is given away": lambda: mock.patch.object(passes, "donated_inputs", _all_inputs),
    "a part that is given away gives all": _always(donation, "covers", value=True),
    "writes are dead code": lambda: mock.patch.object(cleanup, "_may_matter", _no_writes),
    "columns overlap": _always(donation, "disjoint", value=False),
}
