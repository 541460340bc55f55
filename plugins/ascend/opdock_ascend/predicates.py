"""Which arguments torch_npu's operators take: pure functions of metadata, each with the parameters of its IR op.

Each returns True, or the reason why not. The limits are those that the operators' documentation states for Atlas A2; an
operator that is called beyond them fails on the device, where it cannot be caught. They are asked on every eager call:
those of a decoder's common ops begin with the common case, in as few looks as tell it. In a process with NPUs a tensor
with a device number is on one of them: PyTorch has room for one accelerator.
"""

# ruff: noqa: ARG001, FBT001, FBT002 - the parameters are those of the IR ops
from __future__ import annotations

import torch
from torch import Tensor

Answer = bool | str

DEVICE = "npu"
FLOATS = frozenset((torch.bfloat16, torch.float16, torch.float32))
HALVES = frozenset((torch.bfloat16, torch.float16))
POSITIONS = frozenset((torch.int64, torch.int32))

WIDEST_GELU, MOST_GELU_ROWS = 1024, 200_000
"""The limits of npu_gelu_mul: columns of its input, and rows."""

WIDEST_ROTARY, MOST_ROTARY_HEADS = 896, 1000
"""The limits of npu_rotary_mul, both exclusive: columns of a head, and heads."""

_PART = "no operator for a mean square over a part of the row"
_NO_WEIGHT = "the operator multiplies by a weight, and there is none"
_EMPTY = "the operator takes no tensor without elements"


def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Answer:
    """Return whether npu_rms_norm takes the arguments of ``rms_norm``."""
    if (
        variance_size is None
        and weight is not None
        and (device := x.get_device()) >= 0
        and weight.get_device() == device
        and weight.ndim == 1
        and weight.dtype is (dtype := x.dtype)
        and dtype in FLOATS
        and 0 not in (shape := x.shape)
        and 0 < len(shape) <= 8
        and weight.numel() == shape[-1]
    ):
        return True
    if variance_size is not None:
        return _PART
    return _refuse(x) or _refuse_weight(weight, x) or True


def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> Answer:
    """Return whether npu_add_rms_norm takes the arguments of ``fused_add_rms_norm``."""
    if (
        variance_size is None
        and weight is not None
        and (device := x.get_device()) >= 0
        and x_residual.get_device() == device
        and weight.get_device() == device
        and weight.ndim == 1
        and weight.dtype is (dtype := x.dtype)
        and x_residual.dtype is dtype
        and dtype in FLOATS
        and 0 not in (shape := x.shape)
        and 0 < len(shape) <= 8
        and x_residual.shape == shape
        and weight.numel() == shape[-1]
    ):
        return True
    if variance_size is not None:
        return _PART
    if x_residual.shape != x.shape:
        return "x and x_residual differ in shape"
    if x_residual.dtype is not x.dtype:
        return f"x_residual of {x_residual.dtype} beside x of {x.dtype}: the operator adds in one dtype"
    if x_residual.device != x.device:
        return f"x_residual is on {x_residual.device} and x on {x.device}"
    return _refuse(x) or _refuse_weight(weight, x) or True


def gemma_rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Answer:
    """Return whether npu_gemma_rms_norm takes these arguments."""
    return _refuse(x) or _refuse_weight(weight, x) or True


def silu_and_mul(x: Tensor) -> Answer:
    """Return whether npu_swiglu takes the argument of ``silu_and_mul``."""
    if (
        x.get_device() >= 0
        and x.dtype in FLOATS
        and 0 not in (shape := x.shape)
        and 0 < len(shape) <= 8
        and shape[-1] % 2 == 0
    ):
        return True
    return _refuse(x) or (x.shape[-1] % 2 != 0 and "the last dimension is odd") or True


def gelu_and_mul(x: Tensor, approximate: str = "none") -> Answer:
    """Return whether npu_gelu_mul takes the arguments of ``gelu_and_mul``."""
    if approximate not in ("tanh", "none"):
        return f"no operator for approximate={approximate!r}"
    refused = _refuse(x) or (x.shape[-1] % 2 != 0 and "the last dimension is odd")
    if refused:
        return refused
    if x.ndim < 2:
        return "the operator takes two dimensions or more"
    if x.shape[-1] > WIDEST_GELU:
        return f"rows of {x.shape[-1]}: the operator takes up to {WIDEST_GELU}"
    rows = x.numel() // x.shape[-1]
    return rows <= MOST_GELU_ROWS or f"{rows} rows: the operator takes up to {MOST_GELU_ROWS}"


def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox: bool = True
) -> Answer:
    """Return whether npu_mrope takes the arguments of ``rotary_embedding``."""
    if (
        (device := query.get_device()) >= 0
        and key.get_device() == device
        and cos_sin_cache.get_device() == device
        and positions.get_device() == device
        and (dtype := query.dtype) in HALVES
        and key.dtype is dtype
        and cos_sin_cache.dtype is dtype
        and positions.dtype is torch.int64
        and len(rows := query.shape) == 2
        and len(key_rows := key.shape) == 2
        and len(table := cos_sin_cache.shape) == 2
        and positions.ndim == 1
        and positions.numel() == rows[0] == key_rows[0]
        and not (rows[1] % head_size or key_rows[1] % head_size or table[1] % 32)
        and 0 < table[1] <= head_size
        and rows[0]
        and rows[1]
        and key_rows[1]
    ):
        return True
    refused = _refuse_rotary(positions, query, key, head_size, cos_sin_cache)
    if refused:
        return refused
    width = cos_sin_cache.shape[1]
    multiple = 16 if query.dtype is torch.float32 else 32
    return width % multiple == 0 or f"a rotated width of {width}: the operator takes multiples of {multiple}"


def rotary_mul(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox: bool = True
) -> Answer:
    """Return whether npu_rotary_mul takes the arguments of ``rotary_embedding``."""
    refused = _refuse_rotary(positions, query, key, head_size, cos_sin_cache)
    if refused:
        return refused
    if cos_sin_cache.shape[1] >= WIDEST_ROTARY:
        return f"a rotated width of {cos_sin_cache.shape[1]}: the operator takes less than {WIDEST_ROTARY}"
    heads = max(x.numel() // (x.shape[0] * head_size) for x in (query, key))
    return heads < MOST_ROTARY_HEADS or f"{heads} heads: the operator takes less than {MOST_ROTARY_HEADS}"


# -- what several have in common: each returns the reason, or a false value


def _refuse(x: Tensor) -> Answer:
    """Look at the rows that come in."""
    if x.device.type != DEVICE:
        return f"x is on {x.device}, and the operator runs on {DEVICE}"
    if x.dtype not in FLOATS:
        return f"no operator for x of {x.dtype}"
    if not 1 <= x.ndim <= 8:
        return f"x of {x.ndim} dimensions: the operator takes one to eight"
    return x.numel() == 0 and _EMPTY


def _refuse_weight(weight: Tensor | None, x: Tensor) -> Answer:
    if weight is None:
        return _NO_WEIGHT
    if weight.dtype is not x.dtype:
        return f"weight of {weight.dtype} beside x of {x.dtype}: the operator multiplies in one dtype"
    if weight.device != x.device:
        return f"weight is on {weight.device} and x on {x.device}"
    fits = weight.ndim == 1 and weight.shape[0] == x.shape[-1]
    return not fits and f"weight of shape {tuple(weight.shape)} is not one row of x's last dimension, {x.shape[-1]}"


def _refuse_rotary(positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor) -> Answer:
    if query.device.type != DEVICE:
        return f"query is on {query.device}, and the operator runs on {DEVICE}"
    dtype, device = query.dtype, query.device
    if dtype not in FLOATS:
        return f"no operator for query of {dtype}"
    if key.dtype is not dtype or cos_sin_cache.dtype is not dtype:
        return (
            f"query of {dtype}, key of {key.dtype} and cos_sin_cache of {cos_sin_cache.dtype}: the operator takes one "
            "dtype"
        )
    if positions.dtype not in POSITIONS or positions.ndim != 1:
        return f"positions of {positions.dtype}, {positions.ndim} dimensions: int64 or int32 in one are taken"
    if key.device != device or cos_sin_cache.device != device or positions.device != device:
        return "the arguments are on several devices"
    if query.numel() == 0 or key.numel() == 0:
        return _EMPTY
    cache = cos_sin_cache.shape
    if len(cache) != 2 or cache[1] % 2 or not 0 < cache[1] <= head_size:
        return f"cos_sin_cache of shape {tuple(cache)} does not fit head_size {head_size}"
    return _refuse_heads("query", query, positions, head_size) or _refuse_heads("key", key, positions, head_size)


def _refuse_heads(name: str, x: Tensor, positions: Tensor, head_size: int) -> Answer:
    """Look at query or key: (tokens, heads * head_size) or (tokens, heads, head_size)."""
    shape, tokens = x.shape, positions.shape[0]
    fits = shape[0] == tokens and (
        shape[1] % head_size == 0 if len(shape) == 2 else len(shape) == 3 and shape[2] == head_size
    )
    return not fits and f"{name} of shape {tuple(shape)} is not {tokens} rows of whole heads of {head_size}"
