"""Fusion: patterns over calls of IR ops that become calls of other IR ops, before any is lowered."""

from __future__ import annotations

import logging
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import fx
from torch._ops import HigherOrderOperator, OpOverload

from opdock import ir
from opdock.compile import fakes
from opdock.compile.aliases import Aliases
from opdock.compile.body import ORIGIN, agree
from opdock.compile.layouts import describe
from opdock.compile.lowering import MADE_BY
from opdock.compile.matching import Bound, match, match_other_results, same_op
from opdock.compile.nodes import Call, find_call, is_mutable, several, value_of
from opdock.compile.report import GraphReport
from opdock.errors import RegistrationError
from opdock.journal import Site

logger = logging.getLogger("opdock")


@dataclass(frozen=True)
class Fusion:
    """One pattern and what takes its place.

    ``pattern`` and ``replacement`` are functions of the same parameters that return the same results, written with IR
    ops and torch ops; a parameter stands for any value. A call of ``maybe_inplace`` matches like one of the op.

    Args:
        name: for switches and reports.
        pattern: what is looked for. The last op that it calls must depend on all the others.
        replacement: what takes its place: calls of IR ops.
        applies: given the fake values by parameter name, returns True, or a string that says why not.

    Raises: RegistrationError for two functions that do not fit each other, or a pattern without an op.
    """

    name: str
    pattern: Callable[..., Any]
    replacement: Callable[..., Any]
    applies: Callable[[Mapping[str, Any]], bool | str] = lambda _: True

    def __post_init__(self) -> None:
        """Trace both functions and compare them."""
        pattern, replacement = self.pattern_graph, self.replacement_graph
        why = ""
        if _parameters(pattern) != _parameters(replacement):
            why = f"the parameters are {_parameters(pattern)} and {_parameters(replacement)}"
        elif len(_results_of(pattern)) != len(_results_of(replacement)):
            why = f"there are {len(_results_of(pattern))} and {len(_results_of(replacement))} results"
        elif not all(isinstance(n, fx.Node) for g in (pattern, replacement) for n in _results_of(g)):
            why = "a result is a constant"
        elif (odd := [n for g in (pattern, replacement) for n in g.nodes if not _is_plain(n)]) != []:
            why = f"{odd[0].name} is no torch op: write torch.ops.aten.<name>.<overload>(...)"
        elif not self.parts:
            why = "the pattern calls no IR op"
        if why:
            raise RegistrationError(
                f"The pattern and the replacement of fusion {self.name!r} do not fit: {why}.",
                who=[f"{Site.of(fn)}" for fn in (self.pattern, self.replacement)],
                remedy="give both the same parameters and results; what they compute with must depend on those.",
            )

    @cached_property
    def pattern_graph(self) -> fx.Graph:
        """The pattern, traced."""
        return _traced(self.pattern)

    @cached_property
    def replacement_graph(self) -> fx.Graph:
        """The replacement, traced."""
        return _traced(self.replacement)

    @property
    def parts(self) -> list[ir.IrOp]:
        """The IR ops that the pattern has."""
        return _ops_in(self.pattern_graph)

    @property
    def products(self) -> list[ir.IrOp]:
        """The IR ops that the replacement has."""
        return _ops_in(self.replacement_graph)

    @property
    def functions(self) -> Sequence[Callable[..., Any]]:
        """What decides, and what is put in: for the cache key."""
        return self.pattern, self.replacement, self.applies


class GraphFusion(ABC):
    """A fusion that is more than a pattern of IR ops: it changes the graph itself.

    Args:
        name: for switches and reports.
        parts: the IR ops without which it does nothing.
        products: the IR ops whose providers it puts into the graph.
        functions: what decides, and what is put in: for the cache key.
    """

    name: str
    parts: Sequence[ir.IrOp]
    products: Sequence[ir.IrOp]
    functions: Sequence[Callable[..., Any]]

    @abstractmethod
    def apply(self, graph: fx.Graph, report: GraphReport) -> None:
        """Fuse wherever it can in a graph of AOTAutograd, which stays functional, and tell the report."""


def _is_plain(node: fx.Node) -> bool:
    if node.op == "call_function":
        return isinstance(node.target, OpOverload) or node.target is operator.getitem
    return node.op in ("placeholder", "output")


def _parameters(graph: fx.Graph) -> list[str]:
    return [str(n.target) for n in graph.nodes if n.op == "placeholder"]


def _traced(fn: Callable[..., Any]) -> fx.Graph:
    graph = fx.symbolic_trace(fn).graph
    graph.eliminate_dead_code()
    return graph


def _ops_in(graph: fx.Graph) -> list[ir.IrOp]:
    return [call.op for node in graph.nodes if (call := find_call(node)) is not None]


def fuse(graph: fx.Graph, fusions: Iterable[Fusion | GraphFusion], report: GraphReport) -> None:
    """Apply each fusion wherever its pattern is, in order.

    A fusion stays out where it would put the native definition in the place of a provider, where values inside the
    pattern are used elsewhere, and where something between its parts is written.

    Args:
        graph: fake values in ``meta["val"]``; it is changed.
        fusions: in the order in which they are tried.
        report: is told what was applied, and why not.
    """
    for fusion in fusions:
        if isinstance(fusion, GraphFusion):
            fusion.apply(graph, report)
            continue
        calls = [n for n in fusion.pattern_graph.nodes if n.op == "call_function"]
        anchor = next(n for n in reversed(calls) if n.target is not operator.getitem)
        for node in [n for n in graph.nodes if same_op(anchor, n)][::-1]:
            bound: Bound = {}
            if not match(anchor, node, bound):
                continue
            match_other_results(fusion.pattern_graph, bound)
            before = None
            try:
                before, reason = _place(graph, bound)
                reason = reason or _unfit(fusion, bound)
                values = {} if reason else _run(fusion.replacement_graph, _given(bound))
                reason = reason or _changes(fusion, bound, values) or _serves_less(fusion, bound, values)
            except Exception as err:  # noqa: BLE001 - a package's code: the program is right without it
                reason = f"it raised {type(err).__name__}: {err}"
                logger.warning("Fusion %s is left out: %s (%s)", fusion.name, reason, Site.of(fusion.pattern))
            if before is None or reason:
                report.declined[fusion.name] = reason
            else:
                _apply(fusion, graph, bound, values, before)
                report.fused[fusion.name] = report.fused.get(fusion.name, 0) + 1


# -- deciding


def _unfit(fusion: Fusion, bound: Bound) -> str:
    """Return why these values cannot be fused, "" if they can."""
    matched = _matched(bound)
    results = {n for n in _results_of(fusion.pattern_graph) if isinstance(n, fx.Node)}
    for pattern, node in bound.items():
        if pattern.op == "call_function" and pattern not in results and set(node.users) - matched:
            return f"{node.name} is used elsewhere too"
    said = fusion.applies(_given(bound))
    return "" if said is True else said or "its check says no"


def _given(bound: Bound) -> dict[str, Any]:
    """Return the fake values by the parameters' names."""
    return {str(p.target): fx.map_arg(v, value_of) for p, v in bound.items() if p.op == "placeholder"}


def _matched(bound: Bound) -> set[fx.Node]:
    return {n for p, n in bound.items() if p.op == "call_function"}


def _results_of(graph: fx.Graph) -> list[Any]:
    return several(graph.output_node().args[0])


def _changes(fusion: Fusion, bound: Bound, values: Mapping[fx.Node, Any]) -> str:
    """Return a reason if a result would be another kind of tensor."""
    for mine, theirs in zip(_results_of(fusion.pattern_graph), _results_of(fusion.replacement_graph), strict=True):
        if mine in bound and not agree(value_of(bound[mine]), values[theirs]):
            return f"it returns {describe(values[theirs])} for {describe(value_of(bound[mine]))}"
    return ""


def _serves_less(fusion: Fusion, bound: Bound, values: Mapping[fx.Node, Any]) -> str:
    """Return a reason if a provider would make way for the native definition."""
    for node in fusion.replacement_graph.nodes:
        call = find_call(node)
        if call is not None and not call.op.explain(*_filled(call, values)).winner.is_native:
            return ""
    for node in _matched(bound):
        call = find_call(node)
        if call is not None:
            winner = call.op.explain(*(fx.map_arg(a, value_of) for a in call.arguments.values())).winner
            if not winner.is_native:
                return f"{winner.provider} serves {call.op.name}, and only native the fused op"
    return ""


def _filled(call: Call, values: Mapping[fx.Node, Any]) -> list[Any]:
    return [fx.map_arg(a, lambda n: values[n]) for a in call.arguments.values()]


def _run(replacement: fx.Graph, given: Mapping[str, Any]) -> dict[fx.Node, Any]:
    """Return the fake value of every node of the replacement, for the values of its parameters."""
    values: dict[fx.Node, Any] = {}
    with fakes.mode_of(given.values()) or nullcontext():
        for node in replacement.nodes:
            if node.op == "placeholder":
                values[node] = given.get(str(node.target))
            elif node.op == "call_function":
                args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
                values[node] = node.target(*args, **kwargs)
    return values


def _place(graph: fx.Graph, bound: Bound) -> tuple[fx.Node | None, str]:
    """Return the node before which the parts can run as one; or None, and why they cannot."""
    order = {n: i for i, n in enumerate(graph.nodes)}
    matched = sorted(_matched(bound), key=order.__getitem__)
    first, last = matched[0], matched[-1]
    inputs = [n for p, n in bound.items() if p.op == "placeholder" and isinstance(n, fx.Node)]
    between = list(graph.nodes)[order[first] : order[last] + 1]
    if any(is_mutable(n) or isinstance(n.target, HigherOrderOperator) for n in between):
        aliases = Aliases(graph)
        watched = aliases.of([*inputs, *matched])
        if any(aliases.of(aliases.writes.get(n, ())) & watched for n in between):
            return None, "something that it uses is written in between"
    if all(order[n] < order[first] for n in inputs):
        return first, ""
    early = next((u for n in matched for u in n.users if u not in matched and order[u] < order[last]), None)
    if early is not None:
        return None, f"{early.name} needs a result before the last part has run"
    return last, ""


# -- applying


def _apply(fusion: Fusion, graph: fx.Graph, bound: Bound, values: Mapping[fx.Node, Any], before: fx.Node) -> None:
    matched = [n for n in graph.nodes if n in _matched(bound)]
    donated = {a for n in matched if (call := find_call(n)) is not None and call.donates for a in call.activations}
    given = {str(p.target): v for p, v in bound.items() if p.op == "placeholder"}
    values = _kept_values(fusion, bound, values)
    env: dict[fx.Node, Any] = {}
    with graph.inserting_before(before):
        for each in fusion.replacement_graph.nodes:
            if each.op == "placeholder":
                env[each] = given[str(each.target)]
            elif each.op == "call_function":
                args, kwargs = fx.map_arg((each.args, each.kwargs), env.__getitem__)
                called = find_call(each)
                name = called.op.name if called else None
                env[each] = made = graph.create_node("call_function", each.target, args, kwargs, name=name)
                made.meta = {k: matched[-1].meta[k] for k in ORIGIN if k in matched[-1].meta}
                made.meta |= {"val": values[each], MADE_BY: fusion.name}
                _donate(made, donated)
    for pattern, result in zip(_results_of(fusion.pattern_graph), _results_of(fusion.replacement_graph), strict=True):
        if pattern in bound:
            bound[pattern].replace_all_uses_with(env[result])
    for node in reversed(matched):
        if not node.users:
            graph.erase_node(node)


def _kept_values(fusion: Fusion, bound: Bound, values: Mapping[fx.Node, Any]) -> dict[fx.Node, Any]:
    """Return the values with the old fake results in place: views of them, further on, are in their storages."""
    kept = dict(values)
    for mine, theirs in zip(_results_of(fusion.pattern_graph), _results_of(fusion.replacement_graph), strict=True):
        if mine in bound:
            kept[theirs] = value_of(bound[mine])
            if theirs.target is operator.getitem:
                several = list(kept[theirs.args[0]])
                several[theirs.args[1]] = kept[theirs]
                kept[theirs.args[0]] = tuple(several)
    return kept


def _donate(made: fx.Node, donated: set[fx.Node]) -> None:
    """Give away what the parts gave away."""
    call = find_call(made)
    if call is not None and call.op.torch_ops.maybe_inplace is not None and {*call.activations} <= donated:
        made.target = call.op.torch_ops.maybe_inplace
