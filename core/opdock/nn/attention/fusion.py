"""The fusion of ``rotary_embedding`` with the update of the paged cache that follows it.

In the graph of a layer the rotated keys go, as views, into the op that writes the cache. Both become
``unified_rotary_and_kv_cache_update``, whose kernel is that of a provider of the IR op ``rotary_and_cache``; an
attention op that wrote the cache itself is told that this is done. The slots belong to the step and are no input of the
graph: the layer is asked, by its name, whether its backend allows it, and the provider by arguments like those of the
step in force.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import fx

from opdock import ir
from opdock.compile import fakes
from opdock.compile.aliases import FUNCTIONAL, aten, is_higher_order
from opdock.compile.body import ORIGIN, agree
from opdock.compile.fusion import GraphFusion
from opdock.compile.layouts import describe
from opdock.compile.nodes import Call, find_call, is_mutable, value_of, where
from opdock.compile.report import GraphReport, NodeChoice
from opdock.errors import OpdockError
from opdock.ir import Choice
from opdock.nn.attention.forward_context import get_forward_context
from opdock.nn.rotary_and_cache import rotary_and_cache

logger = logging.getLogger("opdock")

_VIEWS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
_SIZES = (aten.sym_size.int,)
_CACHES = ("key_cache", "value_cache")
_WRAPPER = torch.ops.higher_order.auto_functionalized_v2
_ops = torch.ops.opdock
_Results = dict[int, fx.Node]


class RotaryAndCache(GraphFusion):
    """``rotary_embedding`` and the update of the cache as one op."""

    name = "rotary_and_cache"

    def __init__(self) -> None:
        """Name the ops."""
        self.parts: Sequence[ir.IrOp] = [ir.ops.rotary_embedding.op]
        self.products: Sequence[ir.IrOp] = [rotary_and_cache.op]
        self.functions: Sequence[Callable[..., Any]] = [_fuse, _early, _choose, _take_value, _hand_over]

    def apply(self, graph: fx.Graph, report: GraphReport) -> None:
        """Fuse each call of ``rotary_embedding`` whose keys go to a cache, or say why not."""
        for node in list(graph.nodes):
            call = find_call(node)
            if call is None or call.op is not self.parts[0]:
                continue
            results = {user.args[1]: user for user in node.users if user.target is operator.getitem}
            update = _update_of(results.get(1))
            if update is None:
                continue
            try:
                reason = _fuse(graph, call, results, update, report)
            except Exception as err:  # noqa: BLE001 - a package's predicate: the program is right without it
                reason = f"it raised {type(err).__name__}: {err}"
            if reason:
                report.declined[self.name] = reason
                logger.debug("Fusion %s is left out at %s: %s", self.name, where(node)[0], reason)
            else:
                report.fused[self.name] = report.fused.get(self.name, 0) + 1


def _update_of(key: fx.Node | None) -> fx.Node | None:
    """Return the functionalised op that writes these rotated keys to a cache, if there is one."""
    waiting = [] if key is None else [key]
    while waiting:
        node = waiting.pop()
        for user in node.users:
            if user.target in _VIEWS:
                waiting.append(user)
            elif user.target is _WRAPPER and user.kwargs.get("key") is node and _writes_cache(user):
                return user
    return None


def _writes_cache(wrapper: fx.Node) -> bool:
    op = wrapper.args[0]
    if op is _ops.unified_kv_cache_update.default:
        return True
    return op is _ops.unified_attention_with_output.default and wrapper.kwargs.get("update_cache", True) is True


def _fuse(graph: fx.Graph, call: Call, results: _Results, update: fx.Node, report: GraphReport) -> str:
    """Put the fused op before ``update``; return why it cannot be, "" if it was."""
    given = call.arguments
    wrapped: Any = update.kwargs
    if any(f"_{name}_{what}" in wrapped for name in _CACHES for what in ("size", "slice_dim")):
        return "the cache is a view of another tensor"
    caches = [wrapped["_all_bases"][wrapped[f"_{name}_base_index"]] for name in _CACHES]
    early, reason = _early(graph, call.node, results, update)
    made_early = {call.node, *results.values(), *early}
    inputs = [n for n in (*given.values(), wrapped["value"], *caches) if isinstance(n, fx.Node)]
    if not reason and made_early.intersection(inputs):
        reason = "the values or the cache are made of what is rotated"
    if reason:
        return reason
    choice, reason = _choose(given, wrapped["value"], caches, wrapped["layer_name"])
    if choice is None:
        return reason
    fused, reason = _rewrite(graph, call, results, early, update, caches)
    if fused is not None:
        arguments = ", ".join(f"{n}={describe(fx.map_arg(a, value_of))}" for n, a in given.items())
        line, name = where(fused)[0], RotaryAndCache.name
        row = (name, fused.name, choice.winner.provider, arguments, call.donates, name, line, choice.verdicts)
        report.choices.append(NodeChoice(*row))
    return reason


def _rewrite(
    graph: fx.Graph,
    call: Call,
    results: _Results,
    early: Sequence[fx.Node],
    update: fx.Node,
    caches: Sequence[fx.Node],
) -> tuple[fx.Node | None, str]:
    """Return the fused op, which has taken the place of the two; or why its results would be others."""
    given, add = call.arguments, _Adding(graph, update, call.node)
    value: Any = update.kwargs["value"]
    views = _views_for_attention(results)
    split = None if views is None else _split_of(given["query"], given["key"])
    if split is None:  # the definition's results are dense: what follows was traced with that
        dense = {"memory_format": torch.contiguous_format}
        rows: list[Any] = [add(aten.clone.default, given[name], **dense) for name in ("query", "key")]
        places: dict[str, Any] = {"_query_base_index": 0, "_key_base_index": 1}
    else:  # one tensor is written where it lies
        rows = [split.args[0]]
        places = {**_place_in(split, given["query"], "query"), **_place_in(split, given["key"], "key")}
    kwargs = {
        **{name: given[name] for name in ("positions", "cos_sin_cache", "head_size", "is_neox")},
        "value": value,
        "layer_name": update.kwargs["layer_name"],
        **places,
        **{f"_{name}_base_index": len(rows) + k for k, name in enumerate(_CACHES)},
        "_all_bases": [*rows, *caches],
    }
    fused = add(_WRAPPER, _ops.unified_rotary_and_kv_cache_update.default, **kwargs)
    made = [add(operator.getitem, fused, k + 1) for k in range(len(rows) + 2)]
    if split is None:
        parts = made[:2]
        odd = [k for k, old in results.items() if not agree(value_of(old), value_of(parts[k]))]
        if odd:
            _erase(graph, [*made, fused, *rows])
            return None, f"it returns {describe(value_of(parts[odd[0]]))} for {describe(value_of(results[odd[0]]))}"
        for k, old in results.items():
            parts[k].meta["val"] = value_of(old)  # views of it, further on, are in its storage
    else:
        pieces = add(split.target, made[0], *split.args[1:])
        _take_value(add, value, split, pieces, fused)
        parts = [add(operator.getitem, pieces, given[name].args[1]) for name in ("query", "key")]
    for k, old in results.items():
        old.replace_all_uses_with(parts[k])
    for node in early:
        update.prepend(node)
    for node in views or () if split is not None else ():  # their strides are others now
        node.meta["val"] = add.value(node)
    _hand_over(update, caches, made[-2:])
    _erase(graph, [*results.values(), call.node])
    return fused, ""


class _Adding:
    """Adds calls before a node, with fake values; they come from where another node does."""

    def __init__(self, graph: fx.Graph, before: fx.Node, origin: fx.Node) -> None:
        self.graph, self.before = graph, before
        self.origin = {k: origin.meta[k] for k in ORIGIN if k in origin.meta}

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        with self.graph.inserting_before(self.before):
            node = self.graph.create_node("call_function", target, args, kwargs)
        node.meta = {**self.origin, "val": self.value(node)}
        return node

    def value(self, node: fx.Node) -> Any:
        """Return the fake value that a call has for those of its arguments."""
        target: Any = node.target
        args, kwargs = fx.map_arg((node.args, node.kwargs), value_of)
        with fakes.mode_of(value_of(n) for n in node.all_input_nodes) or nullcontext():
            return target(*args, **kwargs)


def _views_for_attention(results: _Results) -> list[fx.Node] | None:
    """Return the views of the results, each behind what it views; None if anything but attention uses them."""
    views: list[fx.Node] = []
    waiting = list(results.values())
    while waiting:
        for user in waiting.pop(0).users:
            if user.target in _VIEWS:
                views.append(user)
                waiting.append(user)
            elif not _is_attention(user) and user.target not in _SIZES:
                return None
    return views


def _is_attention(node: fx.Node) -> bool:
    ops = (_ops.unified_attention_with_output.default, _ops.unified_kv_cache_update.default)
    return node.target is _WRAPPER and node.args[0] in ops


def _split_of(query: Any, key: Any) -> Any:
    """Return the split along columns of a tensor inside the graph that query and key are two parts of, or None."""
    split = query.args[0] if query.target is operator.getitem else None
    if key.target is not operator.getitem or key.args[0] is not split or key.args[1] == query.args[1]:
        return None
    if split.target is not aten.split_with_sizes.default or len(split.args) != 3 or split.args[2] not in (-1, 1):
        return None
    rows, whole = split.args[0], value_of(split.args[0])
    fits = rows.op == "call_function" and whole.dim() == 2 and all(type(n) is int for n in split.args[1])
    return split if fits else None


def _place_in(split: Any, part: Any, name: str) -> dict[str, Any]:
    """Say which columns of the tensor that is split a part has, as the wrapper of functionalised ops wants it."""
    sizes, number = split.args[1], part.args[1]
    start = sum(sizes[:number])
    columns = {"slice_dim": 1, "slice_start": start, "slice_end": start + sizes[number]}
    return {f"_{name}_base_index": 0, **{f"_{name}_{what}": n for what, n in columns.items()}}


def _take_value(add: _Adding, value: Any, split: fx.Node, parts: fx.Node, fused: fx.Node) -> None:
    """Let attention take the values from the written tensor too, so that nobody reads the former one any more."""
    piece: Any = value.args[0] if value.target in _VIEWS else None
    if getattr(piece, "target", None) is not operator.getitem or piece.args[0] is not split:
        return
    new = add(value.target, add(operator.getitem, parts, piece.args[1]), *value.args[1:])
    for user in list(value.users):
        if user is not fused and _is_attention(user):
            user.replace_input_with(value, new)


def _erase(graph: fx.Graph, nodes: Sequence[fx.Node]) -> None:
    for node in nodes:
        graph.erase_node(node)


def _hand_over(update: fx.Node, caches: Sequence[fx.Node], written: Sequence[fx.Node]) -> None:
    """Give an attention op the written caches, and tell it that they are; an update of its own goes."""
    if update.args[0] is _ops.unified_attention_with_output.default:
        for old, new in zip(caches, written, strict=True):
            update.replace_input_with(old, new)
        update.kwargs = {**update.kwargs, "update_cache": False}
        return
    bases: Any = update.kwargs["_all_bases"]
    for user in list(update.users):
        base: Any = bases[user.args[1] - 1]  # type: ignore[operator] # the op itself returns nothing
        user.replace_all_uses_with(written[caches.index(base)])
        update.graph.erase_node(user)
    update.graph.erase_node(update)


def _early(graph: fx.Graph, rotary: fx.Node, results: _Results, update: fx.Node) -> tuple[list[fx.Node], str]:
    """Return the views of the results that are made before ``update``, in order; or why it cannot be waited for."""
    made, early, inside = {rotary, *results.values()}, [], False
    for node in graph.nodes:
        if node is update:
            break
        if node is rotary:
            inside = True
            continue
        if not inside or node in results.values():
            continue
        if is_mutable(node) or (_is_opaque(node) and not is_higher_order(node, FUNCTIONAL)):
            return [], f"{node.name} may write in between"
        if made.intersection(node.all_input_nodes):
            if node.target not in (*_VIEWS, *_SIZES):
                return [], f"{node.name} needs what is rotated before the cache is written"
            made.add(node)
            early.append(node)
    return early, ""


def _is_opaque(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.HigherOrderOperator)


def _choose(
    given: dict[str, Any], value: fx.Node, caches: Sequence[fx.Node], layer_name: str
) -> tuple[Choice | None, str]:
    """Return the provider of ``rotary_and_cache`` that takes these arguments, or None and why there is none."""
    try:
        layer, metadata = get_forward_context().of(layer_name)
        reason = layer.impl.why_not_rotary_and_cache()
    except OpdockError as err:
        return None, f"{str(err).partition(chr(10))[0]}"
    if reason:
        return None, reason
    fake = {name: fx.map_arg(argument, value_of) for name, argument in given.items()}
    rows: Any = value_of(value)
    with fakes.mode_of([rows]) or nullcontext():
        slots = torch.empty((rows.shape[0],), dtype=metadata.slot_mapping.dtype, device=rows.device)
        scales = [torch.empty((), dtype=torch.float32, device=rows.device) for _ in range(2)]
        choice = rotary_and_cache.op.explain(
            fake["positions"],
            fake["query"],
            fake["key"],
            rows,
            *(value_of(cache) for cache in caches),
            slots,
            fake["head_size"],
            fake["cos_sin_cache"],
            *scales,
            fake["is_neox"],
        )
    if choice.winner.is_native or not choice.winner.inplace:
        said = [f"{v.provider}: {v.reason}" for v in choice.verdicts if not v.chosen]
        return None, "no kernel for it" + (f" ({'; '.join(said)})" if said else ", no provider is registered")
    return choice, ""
