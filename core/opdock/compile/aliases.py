"""Which values of a lowered graph may share memory, and what each node reads and writes."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from opdock.compile.layouts import storage_of
from opdock.compile.nodes import several

aten = torch.ops.aten

FUNCTIONAL = {"auto_functionalized", "auto_functionalized_v2", "triton_kernel_wrapper_functional"}
"""Higher-order operators that write nothing, and return memory of their own."""

OVERWRITE = {aten.copy_.default, aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default}
"""Ops that write every element of their first argument and read none of it."""

Root = Any  # fx.Node of an input or a higher-order operator; ("attr", name); (fx.Node, number of the result)


def nodes_in(argument: Any) -> list[fx.Node]:
    """Return the nodes in an argument that are no numbers."""
    found: list[fx.Node] = []
    fx.map_arg(argument, found.append)
    numbers = (torch.SymInt, torch.SymFloat, torch.SymBool)
    return [n for n in found if not isinstance(n.meta.get("val"), numbers)]


def storages_of(node: fx.Node) -> set[int]:
    """Return the storages of a node's value, or of the values in it."""
    return {s for s in map(storage_of, several(node.meta.get("val"))) if s is not None}


def is_higher_order(node: fx.Node, names: set[str]) -> bool:
    """Return whether a node calls a higher-order operator of one of these names."""
    return getattr(node.target, "__name__", "") in names


class Aliases:
    """Alias analysis over a graph whose nodes may write: by the schemas of the ops, and by the fake storages.

    ``roots`` has, for each node, the allocations that its value may live in; two values whose roots are disjoint
    share nothing. ``reads`` and ``writes`` have, for each node that computes, the arguments that it reads and writes.
    """

    def __init__(self, graph: fx.Graph) -> None:
        """Analyse the graph as it is."""
        self.roots: dict[fx.Node, set[Root]] = {}
        self.reads: dict[fx.Node, list[fx.Node]] = {}
        self.writes: dict[fx.Node, list[fx.Node]] = {}
        self._parts: dict[fx.Node, list[set[Root]]] = {}  # of nodes that return several values
        inputs: dict[int, fx.Node] = {}
        for node in graph.nodes:
            if node.op == "placeholder":  # inputs that are known to share memory share a root
                self.roots[node] = {inputs.setdefault(s, node) for s in storages_of(node)} or {node}
            elif node.op == "get_attr":
                self.roots[node] = {("attr", node.target)}
            elif node.target is operator.getitem:
                parts = self._parts.get(node.args[0])
                self.roots[node] = set(parts[node.args[1]] if parts else self.roots[node.args[0]])
            elif node.op == "output":
                self.reads[node], self.writes[node] = nodes_in(node.args), []
            elif isinstance(node.target, OpOverload):
                self._visit_op(node)
            else:
                self._visit_higher_order(node)

    def of(self, nodes: Iterable[fx.Node]) -> set[Root]:
        """Return all roots of the nodes."""
        return set().union(*(self.roots[n] for n in nodes))

    def values_in(self, roots: set[Root]) -> set[fx.Node]:
        """Return the nodes whose value may live in one of ``roots``."""
        return {n for n, own in self.roots.items() if own & roots}

    def _visit_higher_order(self, node: fx.Node) -> None:
        args = nodes_in((node.args, node.kwargs))
        known = is_higher_order(node, FUNCTIONAL)
        self.reads[node] = args
        self.writes[node] = [] if known else _written_by_triton(node, args)
        self.roots[node] = {node} if known else self.of(args) | {node}

    def _visit_op(self, node: fx.Node) -> None:
        target: Any = node.target
        args = nodes_in((node.args, node.kwargs))
        bound = list(_bind(node))
        writes = [n for a, value in bound if a.is_write for n in nodes_in(value)]
        marked = [(a.alias_info.before_set, n) for a, value in bound if a.alias_info for n in nodes_in(value)]
        own_storages = set() if target is aten.clone.default else storages_of(node)
        by_storage = self.of(n for n in args if own_storages & storages_of(n))  # _unsafe_view says nothing
        parts: list[set[Root]] = []
        for number, info in enumerate(r.alias_info for r in target._schema.returns):
            # an empty set of names stands for a list of views
            by_schema = self.of(n for s, n in marked if info and (not info.before_set or s & info.before_set))
            parts.append(by_schema | by_storage or {(node, number)})
        is_view = target.is_view and all(own_storages & storages_of(n) for _, n in marked)
        overwritten = writes if target in OVERWRITE else ()
        self.reads[node] = [] if is_view else [n for n in args if n not in overwritten or args.count(n) > 1]
        self.writes[node] = writes
        if len(parts) > 1:
            self._parts[node] = parts
        self.roots[node] = set().union(*parts)

    def merge(self, clone: fx.Node, source: fx.Node) -> None:
        """Follow the replacement of ``clone`` by ``source``."""
        (root,) = self.roots.pop(clone)
        for roots in [*self.roots.values(), *(r for parts in self._parts.values() for r in parts)]:
            if root in roots:
                roots.remove(root)
                roots.update(self.roots[source])
        for user in clone.users:
            for effects in (self.reads, self.writes):
                if user in effects:
                    effects[user] = [source if n is clone else n for n in effects[user]]


def _bind(node: fx.Node) -> Iterator[tuple[Any, Any]]:
    """Yield (schema argument, value) of a call, keyword arguments such as ``out`` too."""
    schema: Any = node.target._schema  # type: ignore[union-attr]
    yield from zip(schema.arguments, node.args, strict=False)
    yield from ((a, node.kwargs[a.name]) for a in schema.arguments if a.name in node.kwargs)


def _written_by_triton(node: fx.Node, args: Sequence[fx.Node]) -> list[fx.Node]:
    """Return what a Triton kernel's node writes, as far as its code tells; any other operator may write all."""
    if not is_higher_order(node, {"triton_kernel_wrapper_mutation"}):
        return list(args)
    try:
        from torch._higher_order_ops.triton_kernel_wrap import get_mutated_tensors

        given: Any = node.kwargs
        values: Any = fx.map_arg(given["kwargs"], lambda n: n.meta["val"])
        names = get_mutated_tensors(
            given["kernel_idx"], given["constant_args_idx"], values, given["tma_descriptor_metadata"]
        )
    except Exception:  # noqa: BLE001 - a kernel whose code cannot be read, or another release of torch
        return list(args)
    return nodes_in([given["kwargs"][name] for name in names])
