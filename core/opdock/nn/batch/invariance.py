"""Whether all that a model runs promises batch invariance: one step of padding, looked at op by op."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from opdock import ir
from opdock.nn.attention.forward_context import set_forward_context
from opdock.nn.attention.metadata import PADDING_SLOT, AttentionMetadata
from opdock.nn.invariant import BatchInvarianceError, declares, refuse, refuse_compiled
from opdock.registry import OpClass

if TYPE_CHECKING:
    from opdock.nn.attention.paged_cache import PagedKVCache
    from opdock.nn.models.decoder import CausalDecoder

LARGEST_PART: Final = 2048
"""Tokens of a prompt that one step computes, where prompts are cut into the same parts in every batch."""

ROWS: Final = 3
"""Of the step that is looked at."""

OTHER_ROWS: Final = (1, 129)
"""Numbers of rows for which every IR op must choose the provider that it chooses there."""

_EXACT = (
    "_int_mm abs add add_ amax amin arange bitwise_and bitwise_or cat clamp clone contiguous copy_ detach div div_ "
    "embedding empty empty_like empty_strided eq fill_ flatten full full_like gather ge gt index index_select le "
    "lift_fresh logical_and logical_not lt masked_fill masked_fill_ maximum minimum mul mul_ ne neg new_empty "
    "new_zeros ones ones_like reshape round slice_scatter split split_with_sizes squeeze stack sub sub_ to _to_copy "
    "unflatten unsqueeze view where zero_ zeros zeros_like chunk"
)
EXACT: Final = frozenset(_EXACT.split())
"""Torch's ops whose results are rounded once, element by element, or not at all, and sums of integers."""

OWN: Final = frozenset(("invariant_linear", "unified_attention_with_output", "unified_kv_cache_update"))
"""Ops of this package that keep the promise; attention's backend was chosen for it."""

_EXPERTS: Final = "fused_moe"

WITH_SWITCH: Final = frozenset(("int4_linear", "scaled_linear"))
"""Ops of this package whose argument ``invariant`` says whether they keep it."""


def require(model: CausalDecoder, cache: PagedKVCache) -> None:
    """Run one step of padding, which writes to no cache, and look at every op of it.

    Args:
        model: bound to ``cache``.
        cache: of a batch.

    Raises: BatchInvarianceError, naming the layer and the op, for anything that does not promise that a row's bits do
        not depend on the other rows.
    """
    refuse_compiled(model)
    for name, module in model.named_modules():
        _check_layer(name, module)
    device = model.model.embed_tokens.weight.device
    ids, positions = (torch.zeros(ROWS, dtype=torch.int64, device=device) for _ in range(2))
    metadata = AttentionMetadata(
        query_start_loc=torch.arange(ROWS + 1, dtype=torch.int32, device=device),
        seq_lens=torch.zeros(ROWS, dtype=torch.int32, device=device),
        block_table=torch.zeros(ROWS, 1, dtype=torch.int32, device=device),
        slot_mapping=torch.full((ROWS,), PADDING_SLOT, dtype=torch.int64, device=device),
        num_tokens=ROWS,
        max_query_len=1,
        max_seq_len=cache.block_size,
    )
    watch = Watch()
    with set_forward_context(metadata, cache), watch.over(model):
        model.compute_logits(model(ids, positions))


class Watch(TorchDispatchMode):
    """Raises BatchInvarianceError for the first op that does not promise it."""

    def __init__(self) -> None:
        """Be in no layer."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._ops = {overload: op for op in ir.registry.values() for overload in _overloads(op)}
        self._layers: list[str] = []

    @contextlib.contextmanager
    def over(self, model: torch.nn.Module) -> Iterator[None]:
        """Look at what ``model`` runs inside, and know in which layer it is."""
        with contextlib.ExitStack() as undo:
            for name, module in model.named_modules():
                before = module.register_forward_pre_hook(lambda _, __, name=name: self._layers.append(name))
                after = module.register_forward_hook(lambda *_: self._leave(), always_call=True)
                undo.callback(before.remove)
                undo.callback(after.remove)
            undo.enter_context(self)
            yield

    def _leave(self) -> None:
        self._layers.pop()

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op that promises it."""
        kwargs = kwargs or {}
        op = self._ops.get(func)
        if op is not None:
            self._look_at(op, op.apply_arg_defaults(op.signature.bind(*args, **kwargs).args))
        elif not promises(func, args, kwargs):
            raise self._refuse(f"op {func}", "Nothing promises the order of its sums, or one kernel for all shapes.")
        try:
            return func(*args, **kwargs)
        except BatchInvarianceError as err:  # it knows the op
            raise self._refuse("; ".join(err.who), "; ".join(err.why)) from err

    def _look_at(self, op: ir.IrOp, args: Sequence[Any]) -> None:
        """Refuse a provider that does not declare it, and a choice that depends on the number of rows."""
        impl = op.explain(*args).winner  # dispatch() would warn of what is refused here
        who, remedy = f"IR op {op.name}, provider {impl.provider}", f"let one provider of {op.name} that declares it be"
        if not impl.batch_invariant:
            raise self._refuse(who, "It does not declare batch_invariant.", f"{remedy} chosen")
        for rows in OTHER_ROWS:
            other = op.explain(*(_with_rows(a, rows) for a in args)).winner
            if other is not impl:
                why = f"It takes {ROWS} rows, and {other.provider} is chosen for {rows}."
                raise self._refuse(who, why, f"{remedy} the only one of its priority")
        if not impl.is_native and not _same_alone(impl.func_impl_fn, args):
            why = (
                f"It declares batch_invariant, and a row among {OTHER_ROWS[-1]} of its kind has other bits than alone."
            )
            raise self._refuse(who, why, f"drop it from the priority: -{impl.provider}")

    def _refuse(self, op: str, why: str, remedy: str = "") -> Exception:
        return refuse([f"layer {(self._layers or [''])[-1] or 'the model itself'}", op], why, remedy)


def promises(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether a torch op, with these arguments, has rows that do not depend on each other."""
    space, name = func.namespace, func._schema.name.partition("::")[2]
    if space == "opdock":
        if name not in WITH_SWITCH:
            return name in OWN
        names = [argument.name for argument in func._schema.arguments]
        return bool({**dict(zip(names, args, strict=False)), **kwargs}.get("invariant"))
    if space not in ("aten", "prims"):
        return False
    if kwargs.get("alpha", 1) != 1:  # a product and a sum, which some kernels round once
        return False
    return name in EXACT or func.is_view


def _with_rows(argument: Any, rows: int) -> Any:
    """Return memory like that of an argument with a row for each token, for another number of tokens."""
    if not isinstance(argument, torch.Tensor) or not argument.dim() or argument.shape[0] != ROWS:
        return argument
    shape = (rows, *argument.shape[1:])
    return torch.empty_strided(shape, argument.stride(), dtype=argument.dtype, device=argument.device)


def _same_alone(run: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Return whether the first row of the arguments has the same bits alone and among many like it, at any place."""

    def among(rows: int) -> list[torch.Tensor]:
        copies = [
            a[:1].expand(rows, *a.shape[1:]).clone(memory_format=torch.contiguous_format)
            if _with_rows(a, 1) is not a
            else a
            for a in args
        ]
        made = run(*copies)
        several = made if isinstance(made, tuple) else (made,)
        return [m.contiguous().view(torch.uint8) for m in several if m.shape[:1] == (rows,)]

    alone, many = among(1), among(OTHER_ROWS[-1])
    return all(torch.equal(m, a.expand_as(m)) for m, a in zip(many, alone, strict=True))


def _overloads(op: ir.IrOp) -> Iterator[object]:
    yield op.torch_ops.default
    if op.torch_ops.maybe_inplace is not None:
        yield op.torch_ops.maybe_inplace


def _check_layer(name: str, module: torch.nn.Module) -> None:
    """Refuse experts, and classes of packages that do not declare it: what they launch need not be an op of torch."""
    if isinstance(module, OpClass) and getattr(module, "name", "") == _EXPERTS:
        raise refuse(
            [f"layer {name}", "op moe_experts"],
            "Its router's scores are taken by one kernel over all rows, which promises no order for a row.",
        )
    method: Any = getattr(module, "quant_method", None)
    for part in (module if isinstance(module, OpClass) else None, method, getattr(method, "kernel", None)):
        cls = type(part)
        if part is None or cls.__module__.startswith("opdock.nn.") or declares(cls):
            continue
        raise refuse(
            [f"layer {name}", f"{cls.__module__}.{cls.__qualname__}"],
            "The class does not declare batch_invariant = True.",
            "build the in-tree class",
        )
