"""The provider ``cuda`` of ``rotary_and_cache``: which arguments the kernel takes, and the call of it."""

# ruff: noqa: D103, FBT001, FBT002 - signature and documentation are those of the IR op
# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from opdock.nn.rotary_and_cache import rotary_and_cache as op
from opdock_cuda import predicates

_INTEGERS = frozenset((torch.int64, torch.int32))
_FP8 = torch.float8_e4m3fn


def takes(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    head_size: int,
    cos_sin_cache: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    is_neox: bool = True,
) -> bool | str:
    """Return whether the kernel takes the arguments: it writes query, key and the caches."""
    said = predicates.rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox)
    if said is not True:
        return said
    device, dtype, tokens = key.get_device(), key.dtype, key.shape[0]
    heads = key.shape[1:].numel() // head_size
    others = {"value": value, "key_cache": key_cache, "value_cache": value_cache, "slot_mapping": slot_mapping}
    for name, other in others.items():
        if other.get_device() != device:
            return f"{name} is on {other.device} and key on {key.device}"
    if value.dtype is not dtype or value.shape != (tokens, heads, head_size) or value.stride(2) != 1:
        return f"value {tuple(value.shape)} of {value.dtype} is not {tokens} rows of {heads} dense heads of {head_size}"
    if slot_mapping.dtype not in _INTEGERS or slot_mapping.stride() != (1,) or slot_mapping.shape[0] != tokens:
        return f"slot_mapping of {slot_mapping.dtype} is not one int64 or int32 for each of {tokens} rows, dense"
    if torch.is_grad_enabled() and value.requires_grad:
        return "the kernels compute no gradients, and value requires one"
    return (
        _refuse_cache("key_cache", key_cache, dtype, heads, head_size)
        or _refuse_cache("value_cache", value_cache, dtype, heads, head_size)
        or _refuse_pair(key_cache, value_cache)
        or _refuse_scale("k_scale", k_scale, device)
        or _refuse_scale("v_scale", v_scale, device)
        or True
    )


def _refuse_cache(name: str, cache: Tensor, dtype: torch.dtype, heads: int, head_size: int) -> str:
    """Return why a cache is not blocks of dense rows, "" if it is."""
    if cache.dtype is not dtype and cache.dtype is not _FP8:
        return f"{name} of {cache.dtype} beside key of {dtype}: the same dtype, or {_FP8}"
    width = heads * head_size
    if cache.ndim != 4 or cache.shape[2:] != (heads, head_size) or cache.stride()[1:] != (width, head_size, 1):
        return f"{name} of shape {tuple(cache.shape)} is not blocks of dense rows of {heads} heads of {head_size}"
    if cache.shape[0] > 1 and cache.stride(0) < cache.shape[1] * width:
        return f"{name} is written, and its elements share memory"
    return ""


def _refuse_pair(keys: Tensor, values: Tensor) -> str:
    if keys.dtype is values.dtype and keys.shape == values.shape:
        return ""
    return f"key_cache {tuple(keys.shape)} of {keys.dtype}, value_cache {tuple(values.shape)} of {values.dtype}"


def _refuse_scale(name: str, scale: Tensor, device: int) -> str:
    fits = scale.dtype is torch.float32 and scale.numel() == 1 and scale.get_device() == device
    return "" if fits else f"{name} is not one float32 on the device of key"


def register(supported: Callable[[], bool | str], *, batch_invariant: bool) -> None:
    """Register the provider; the parameters are those of ``register_impl``."""
    decorate = op.register_impl(
        "cuda", supported=supported, supports_args=takes, inplace=True, batch_invariant=batch_invariant
    )
    decorate(rotary_and_cache)


def rotary_and_cache(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    head_size: int,
    cos_sin_cache: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    is_neox: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.ops.opdock_cuda.rotary_and_cache_.default(
        positions,
        query,
        key,
        value,
        key_cache,
        value_cache,
        slot_mapping,
        head_size,
        cos_sin_cache,
        k_scale,
        v_scale,
        is_neox,
    )
    return query, key, key_cache, value_cache
