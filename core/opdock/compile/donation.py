"""Giving memory away: what ``maybe_inplace`` is given may not be used afterwards, by any name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from opdock.compile.aliases import Aliases
from opdock.compile.layouts import covers, disjoint, storage_of
from opdock.compile.nodes import Call, DonationError, calls_in, value_of, where


def check_donations(graph: fx.Graph) -> None:
    """Refuse a program that uses memory after it was given to ``maybe_inplace``, through a view too.

    Values that share the storage but no element are free: the value columns of a fused projection, of which the
    query and key columns were given away.

    Raises: DonationError that names both lines.
    """
    calls = [call for call in calls_in(graph) if call.donates]
    if not calls:
        return
    order = {node: i for i, node in enumerate(graph.nodes)}
    tensors = [(n, value_of(n)) for n in graph.nodes if isinstance(value_of(n), torch.Tensor)]
    for call in calls:
        _refuse_shared_arguments(call)
        for given in call.activations:
            _refuse_module_state(call, given, tensors)
            for node in _overlapping(given, tensors):
                late = next((u for u in node.users if order[u] > order[call.node] and _touches(u)), None)
                if late is not None and node is not call.node:
                    raise _used_again(call, given, node, late)


def keep_copies(graph: fx.Graph) -> None:
    """Let only those calls give memory away whose activations are all inputs of the graph, or views of them.

    Passes that run before ours take the graph for functional: they may put an input in the place of its copy, and the
    copy was what the program gave away. For values inside the graph giving away changes nothing: who overwrites them
    is found by liveness.

    Args:
        graph: of Dynamo; other calls become calls of the default overload.
    """
    inputs = {storage_of(value_of(n)) for n in graph.nodes if n.op == "placeholder"} - {None}
    for call in list(calls_in(graph)):
        if call.donates and not all(storage_of(value_of(a)) in inputs for a in call.activations):
            call.node.target = call.op.torch_ops.default


def _overlapping(given: fx.Node, tensors: list[tuple[fx.Node, torch.Tensor]]) -> Iterator[fx.Node]:
    value = value_of(given)
    if not isinstance(value, torch.Tensor):
        yield given
        return
    storage = storage_of(value)
    for node, other in tensors:
        if node is given or (storage is not None and storage_of(other) == storage and not disjoint(value, other)):
            yield node


def _touches(user: fx.Node) -> bool:
    """Return whether a node reads memory or makes a view; asking for a size does neither."""
    value = value_of(user)
    return not isinstance(value, int | torch.SymInt | torch.Size | torch.dtype | torch.device)


def _refuse_module_state(call: Call, given: fx.Node, tensors: list[tuple[fx.Node, torch.Tensor]]) -> None:
    """Refuse to give away a parameter or buffer: the next call of the module would find it overwritten."""
    state = next((n for n in _overlapping(given, tensors) if _is_module_state(n)), None)
    if state is not None:
        raise DonationError(
            f"{call.op.name}.maybe_inplace is given {state.name}, which belongs to a module.",
            who=where(call.node),
            why="Its memory may hold the op's results: the next call would find them in the module.",
            remedy=f"call {call.op.name} itself, which keeps its inputs.",
        )


def _is_module_state(node: fx.Node) -> bool:
    if node.op == "get_attr" or isinstance(value_of(node), torch.nn.Parameter):
        return True
    source = getattr(getattr(node, "_dynamo_source", None), "guard_source", None)
    return "NN_MODULE" in getattr(source() if callable(source) else source, "name", "")


def _refuse_shared_arguments(call: Call) -> None:
    """Refuse a call that gives away memory which another of its arguments is in."""
    given = call.arguments
    for name in call.op.activations:
        value: Any = given[name]
        for other, node in given.items():
            if other == name or not isinstance(node, fx.Node) or not isinstance(value_of(node), torch.Tensor):
                continue
            if node in _overlapping(value, [(node, value_of(node))]):
                raise DonationError(
                    f"{call.op.name}.maybe_inplace is given the same memory as {name} and as {other}.",
                    who=where(call.node),
                    why=f"It may write its result into {name} before it has read {other}.",
                    remedy=f"call {call.op.name} itself, which keeps its inputs, or clone one of the two.",
                )


def _used_again(call: Call, given: fx.Node, node: fx.Node, late: fx.Node) -> DonationError:
    shown = f"{given.name}" if node is given else f"{node.name}, which shares its memory,"
    use = "is returned" if late.op == "output" else "is used again"
    return DonationError(
        f"Input {given.name} to maybe_inplace node {call.node.name} is used again after the node: {shown} {use}.",
        who=[
            *(f"given away at  {line}" for line in where(call.node)),
            *(f"used again at  {line}" for line in (where(late) if late.op != "output" else ["the end of the graph"])),
        ],
        why="Activation inputs of maybe_inplace are donated to the op: their memory may hold its results.",
        remedy=f"call {call.op.name} itself, which keeps its inputs, or clone the input before.",
    )


def donated_inputs(graph: fx.Graph) -> set[int]:
    """Return the numbers of the graph's inputs whose memory the program gives away, and does not use afterwards.

    An input counts if all of it is given away, itself or as a view, and nothing that may share its memory is used
    after that.
    """
    calls = [call for call in calls_in(graph) if call.donates]
    if not calls:
        return set()
    order = {node: i for i, node in enumerate(graph.nodes)}
    inputs = {node: k for k, node in enumerate(n for n in graph.nodes if n.op == "placeholder")}
    aliases = Aliases(graph)
    found = set()
    for call in calls:
        for given in call.activations:
            for root in aliases.roots[given] & inputs.keys():
                users = {u for n in aliases.values_in({root}) for u in n.users}
                if _gives_all(given, root) and all(order[u] <= order[call.node] for u in users):
                    found.add(inputs[root])
    return found


def _gives_all(given: fx.Node, root: fx.Node) -> bool:
    value, whole = value_of(given), value_of(root)
    if given is root:
        return True
    return isinstance(value, torch.Tensor) and isinstance(whole, torch.Tensor) and covers(value, whole)
