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
        self.functions: Sequence[Callable[..., Any]] = [_fuse, _early, _choose]

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
    if any(f"_{name}_base_index" not in wrapped for name in _CACHES) or "_key_cache_size" in wrapped:
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
    mode = fakes.mode_of([value_of(given["query"])])
    origin = {k: call.node.meta[k] for k in ORIGIN if k in call.node.meta}

    def add(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str | None = None) -> fx.Node:
        node = graph.create_node("call_function", target, args, kwargs, name=name)
        with mode or nullcontext():
            values = fx.map_arg((args, kwargs), value_of)
            node.meta = {**origin, "val": target(*values[0], **values[1])}
        return node

    with graph.inserting_before(update):
        # The definition's results are dense: what follows was traced with that.
        dense = {"memory_format": torch.contiguous_format}
        bases = [add(aten.clone.default, (given[name],), dense) for name in ("query", "key")] + caches
        names = ("query", "key", *_CACHES)
        kwargs = {
            "positions": given["positions"],
            "value": wrapped["value"],
            "cos_sin_cache": given["cos_sin_cache"],
            "head_size": given["head_size"],
            "is_neox": given["is_neox"],
            "layer_name": wrapped["layer_name"],
            **{f"_{name}_base_index": k for k, name in enumerate(names)},
            "_all_bases": bases,
        }
        fused = add(_WRAPPER, (_ops.unified_rotary_and_kv_cache_update.default,), kwargs, "rotary_and_cache")
        made = [add(operator.getitem, (fused, k + 1), {}) for k in range(4)]
    for number, old in results.items():
        new, kept = made[number], value_of(old)
        if not agree(kept, value_of(new)):
            _erase(graph, [*made, fused, *bases[:2]])
            return f"it returns {describe(value_of(new))} for {describe(kept)}"
        new.meta["val"] = kept  # views of it, further on, are in its storage
        old.replace_all_uses_with(new)
    for node in early:
        update.prepend(node)
    _hand_over(update, caches, made[2:])
    _erase(graph, [*results.values(), call.node])
    arguments = ", ".join(f"{n}={describe(fx.map_arg(a, value_of))}" for n, a in given.items())
    line = where(fused)[0]
    name = RotaryAndCache.name
    report.choices.append(
        NodeChoice(name, fused.name, choice.winner.provider, arguments, call.donates, name, line, choice.verdicts)
    )
    return ""


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
