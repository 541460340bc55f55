"""Lowering: each call of an IR op becomes the traced body of the provider chosen for its fake arguments."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree
from torch import fx

from opdock import ir
from opdock.compile import body, fakes, real
from opdock.compile.body import Body, Decompositions
from opdock.compile.layouts import describe
from opdock.compile.nodes import Call, LoweringError, calls_in, find_call, value_of, where
from opdock.compile.report import GraphReport, NodeChoice
from opdock.ir import Choice
from opdock.ir.strict import NoAddress

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode

MADE_BY = "opdock_made_by"
"""Key in a node's ``meta``: the fusion that made it."""

_MOST_NESTED = 16


class Lowering:
    """Lowers the graphs of one compilation.

    Calls of one op with arguments of one kind (dtypes, sizes, strides, symbols, constants) share one choice and one
    traced body.

    Args:
        decompositions: of aten ops in the bodies.
        report: is told every choice.
    """

    def __init__(self, decompositions: Decompositions, report: GraphReport) -> None:
        """Start with nothing traced."""
        self._decompositions, self._report = decompositions, report
        self._bodies: dict[Any, tuple[Choice, Body]] = {}

    def lower(self, graph: fx.Graph, *, also_mutating: bool) -> None:
        """Lower the calls in ``graph``.

        Args:
            graph: fake values in ``meta["val"]``; it is changed.
            also_mutating: whether bodies that write are put in; False leaves those calls for later.

        Raises: LoweringError for a provider that fails or does not keep its promises.
        """
        waiting = [(call, 0) for call in calls_in(graph)][::-1]
        while waiting:
            call, depth = waiting.pop()
            if depth > _MOST_NESTED:
                raise _endless(call)
            choice, found = self._body_of(call)
            if found.mutates and not also_mutating:
                continue
            if not depth:  # a call inside a provider is that provider's matter
                self._record(call, choice)
            before = call.node.prev
            found.inline(call.node, _inputs_of(call))
            waiting += [(nested, depth + 1) for nested in _calls_after(before, found)][::-1]

    def _body_of(self, call: Call) -> tuple[Choice, Body]:
        given = {name: _value(argument) for name, argument in call.arguments.items()}
        key = call.op.name, _kind_of(given)
        if key not in self._bodies:
            mode = fakes.mode_of(given.values())
            choice = _choose(call, given, mode)
            traced = body.trace(choice.winner, given, mode, self._decompositions)
            body.check_results(choice.winner, call.node, traced)
            real.check_real_results(choice.winner, call.node.meta["val"], opaque_writes=traced.mutates)
            self._report.bodies += 1
            self._bodies[key] = choice, traced
        return self._bodies[key]

    def _record(self, call: Call, choice: Choice) -> None:
        self._report.choices.append(_row(call, choice))


def planned(graph: fx.Graph) -> GraphReport:
    """Return a report of what would be chosen for the calls in a graph, of Dynamo's too; nothing is changed."""
    report = GraphReport(cached=True)
    chosen: dict[Any, Choice] = {}
    for call in calls_in(graph):
        given = {name: _value(argument) for name, argument in call.arguments.items()}
        key = call.op.name, _kind_of(given)
        if key not in chosen:
            chosen[key] = _choose(call, given, fakes.mode_of(given.values()))
        report.choices.append(_row(call, chosen[key]))
    return report


def _row(call: Call, choice: Choice) -> NodeChoice:
    return NodeChoice(
        op=call.op.name,
        node=call.node.name,
        provider=choice.winner.provider,
        arguments=", ".join(f"{n}={describe(_value(a))}" for n, a in call.arguments.items()),
        donates=call.donates,
        made_by=call.node.meta.get(MADE_BY, ""),
        user=where(call.node)[0],
        verdicts=choice.verdicts,
    )


def refuse_leftovers(graph: fx.Graph) -> None:
    """Raise LoweringError if a call of an IR op is left in the graph."""
    left = [call.node for call in calls_in(graph)]
    if left:
        raise LoweringError(
            f"{len(left)} calls of IR ops are left after lowering: {', '.join(n.name for n in left)}.",
            who=[line for node in left for line in where(node)],
            remedy="this is a fault of opdock or of a pass that a package added; please report it.",
        )


def _calls_after(before: fx.Node, inlined: Body) -> list[Call]:
    """Return the calls of IR ops among the nodes that were just put in behind ``before``."""
    count = sum(n.op in ("get_attr", "call_function") for n in inlined.graph.nodes)
    found, node = [], before.next
    for _ in range(count):
        call = find_call(node)
        if call is not None:
            found.append(call)
        node = node.next
    return found


def _inputs_of(call: Call) -> list[fx.Node]:
    leaves = pytree.tree_leaves(list(call.arguments.values()))
    return [leaf for leaf in leaves if isinstance(leaf, fx.Node) and body.is_traced(value_of(leaf))]


def _value(argument: Any) -> Any:
    """Return the fake value of an argument: of a node, or of the nodes in a list."""
    return fx.map_arg(argument, value_of)


def _choose(call: Call, given: Mapping[str, Any], mode: FakeTensorMode | None) -> Choice:
    try:
        with mode or nullcontext(), NoAddress():
            choice = call.op.explain(*given.values())
    except Exception as err:
        impl = _whose_predicate_fails(call.op, given, mode)
        raise LoweringError(
            f"supports_args of provider {impl.provider if impl else '?'} of op {call.op.name} fails on fake tensors: "
            f"{type(err).__name__}.",
            who=[impl.where() if impl else repr(call.op), *where(call.node)],
            why=str(err).strip().partition("\n")[0],
            remedy="decide by dtype, shape, strides, storage_offset and device alone: compiled code has no data yet.",
        ) from err
    call.op.say_variant(choice.winner)
    return choice


def _whose_predicate_fails(op: ir.IrOp, given: Mapping[str, Any], mode: FakeTensorMode | None) -> ir.IrOpImpl | None:
    def fails(impl: ir.IrOpImpl) -> bool:
        try:
            with mode or nullcontext(), NoAddress():
                impl.supports_args(*given.values())
        except Exception:  # noqa: BLE001 - whose it is, is the question
            return True
        return False

    return next((impl for impl in op.current().impls if fails(impl)), None)


def _kind_of(given: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what two calls must have in common to share a body."""
    storages: dict[int, int] = {}
    return tuple(_kind(value, storages) for value in given.values())


def _kind(value: Any, storages: dict[int, int]) -> Any:
    if isinstance(value, tuple | list):
        return type(value), tuple(_kind(v, storages) for v in value)
    if isinstance(value, torch.Tensor):
        number = storages.setdefault(value.untyped_storage()._cdata, len(storages))
        geometry = tuple(_number(n) for n in (*value.size(), *value.stride(), value.storage_offset()))
        return value.dtype, value.device, value.dim(), geometry, number
    return _number(value) if _is_symbol(value) else (type(value), value)


def _is_symbol(value: Any) -> bool:
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def _number(value: Any) -> Any:
    return value.node.expr if _is_symbol(value) else value


def _endless(call: Call) -> LoweringError:
    return LoweringError(
        f"The providers of op {call.op.name} call one another without end.",
        who=where(call.node),
        remedy="a provider must not call its own op; call ir.native, or a kernel.",
    )
