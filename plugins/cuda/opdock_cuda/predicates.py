"""Which arguments the kernels take: pure functions of metadata, each with the parameters of its IR op.

Each returns True, or the reason why not. They are asked on every eager call, and ask ``direct.fits`` first, compiled
code that knows the common layouts; what it does not take is looked at here, and refused with the reason.
"""

# ruff: noqa: FBT001, FBT002 - the parameters are those of the IR ops
from __future__ import annotations

import torch
from torch import Tensor

from opdock_cuda.direct import fits
from opdock_cuda.layout import lies_apart, rows_of

Answer = bool | str

_FLOATS = frozenset((torch.bfloat16, torch.float16, torch.float32))
_CACHED = _FLOATS | {torch.float8_e4m3fn, torch.float8_e5m2}
_POSITIONS = frozenset((torch.int64, torch.int32))
_FLOAT, _FP8 = torch.float32, torch.float8_e4m3fn
_DENSE = (1,)
_NARROW, _LIMIT = 64, 1 << 31
_with_grad = torch.is_grad_enabled
_dynamo = torch.compiler.is_dynamo_compiling

_PART = "no kernel for a mean square over a part of the row"
_GRAD = "the kernels compute no gradients, and an input requires one"
_ODD = "the last dimension is odd"
_EMPTY = "rows without elements have no largest one"
_SHAPES = "x and x_residual differ in shape"


def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Answer:
    """Return whether the kernel takes the arguments of ``rms_norm``."""
    if not _dynamo() and fits.rms_norm(x, weight, epsilon, variance_size):
        return True
    if variance_size is not None:
        return _PART
    return _refuse(x) or (weight is not None and _refuse_weight(weight, x)) or True


def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> Answer:
    """Return whether the kernel takes the arguments of ``fused_add_rms_norm``, both of which it writes."""
    if not _dynamo() and fits.fused_add_rms_norm(x, x_residual, weight, epsilon, variance_size):
        return True
    if variance_size is not None:
        return _PART
    return (
        _refuse(x)
        or _refuse_residual(x, x_residual)
        or (weight is not None and _refuse_weight(weight, x))
        or (not x.is_contiguous() and _refuse_overlap("x", x))
        or (not x_residual.is_contiguous() and _refuse_overlap("x_residual", x_residual))
        or (x is x_residual and "x and x_residual are one tensor, and both are written")
        or True
    )


def fused_add_rms_norm_kept(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,  # noqa: ARG001 - as in the op
) -> Answer:
    """Return whether the kernel takes them where its results are new: rows may share memory, nothing is written."""
    return _refuse(x) or _refuse_residual(x, x_residual) or (weight is not None and _refuse_weight(weight, x)) or True


def rms_norm_static_fp8_quant(
    x: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: torch.dtype = torch.float8_e4m3fn
) -> Answer:
    """Return whether the kernel takes the arguments of ``rms_norm_static_fp8_quant``."""
    if not _dynamo() and fits.rms_norm_static_fp8_quant(x, weight, scale, epsilon, dtype):
        return True
    if dtype is not _FP8:
        return _other_fp8(dtype)
    return _refuse(x) or _refuse_scale(scale, x) or (weight is not None and _refuse_weight(weight, x)) or True


def rms_norm_dynamic_per_token_fp8_quant(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    scale_ub: Tensor | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> Answer:
    """Return whether the kernel takes the arguments of ``rms_norm_dynamic_per_token_fp8_quant``."""
    if not _dynamo() and fits.rms_norm_dynamic_per_token_fp8_quant(x, weight, epsilon, scale_ub, dtype):
        return True
    return _refuse_token(x, scale_ub, dtype) or (weight is not None and _refuse_weight(weight, x)) or True


def fused_add_rms_norm_static_fp8_quant(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    scale: Tensor,
    epsilon: float,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> Answer:
    """Return whether the kernel takes the arguments of ``fused_add_rms_norm_static_fp8_quant``."""
    if not _dynamo() and fits.fused_add_rms_norm_static_fp8_quant(x, x_residual, weight, scale, epsilon, dtype):
        return True
    if dtype is not _FP8:
        return _other_fp8(dtype)
    return (
        _refuse(x)
        or _refuse_residual(x, x_residual)
        or _refuse_scale(scale, x)
        or (weight is not None and _refuse_weight(weight, x))
        or True
    )


def fused_add_rms_norm_dynamic_per_token_fp8_quant(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    scale_ub: Tensor | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> Answer:
    """Return whether the kernel takes the arguments of ``fused_add_rms_norm_dynamic_per_token_fp8_quant``."""
    if not _dynamo() and fits.fused_add_rms_norm_dynamic_per_token_fp8_quant(
        x, x_residual, weight, epsilon, scale_ub, dtype
    ):
        return True
    return (
        _refuse_token(x, scale_ub, dtype)
        or _refuse_residual(x, x_residual)
        or (weight is not None and _refuse_weight(weight, x))
        or True
    )


def silu_and_mul(x: Tensor) -> Answer:
    """Return whether the kernel takes the argument of ``silu_and_mul``."""
    if not _dynamo() and fits.silu_and_mul(x):
        return True
    return _refuse(x) or (x.shape[-1] % 2 != 0 and _ODD) or True


def gelu_and_mul(x: Tensor, approximate: str = "none") -> Answer:
    """Return whether the kernel takes the arguments of ``gelu_and_mul``."""
    if not _dynamo() and fits.gelu_and_mul(x, approximate):
        return True
    if approximate not in ("tanh", "none"):
        return f"no kernel for approximate={approximate!r}"
    return _refuse(x) or (x.shape[-1] % 2 != 0 and _ODD) or True


def silu_and_mul_static_fp8_quant(x: Tensor, scale: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> Answer:
    """Return whether the kernel takes the arguments of ``silu_and_mul_static_fp8_quant``."""
    if not _dynamo() and fits.silu_and_mul_static_fp8_quant(x, scale, dtype):
        return True
    if dtype is not _FP8:
        return _other_fp8(dtype)
    return _refuse(x) or _refuse_scale(scale, x) or (x.shape[-1] % 2 != 0 and _ODD) or True


def silu_and_mul_dynamic_per_token_fp8_quant(
    x: Tensor, scale_ub: Tensor | None = None, dtype: torch.dtype = torch.float8_e4m3fn
) -> Answer:
    """Return whether the kernel takes the arguments of ``silu_and_mul_dynamic_per_token_fp8_quant``."""
    if not _dynamo() and fits.silu_and_mul_dynamic_per_token_fp8_quant(x, scale_ub, dtype):
        return True
    return _refuse_token(x, scale_ub, dtype) or (x.shape[-1] % 2 != 0 and _ODD) or True


def static_scaled_fp8_quant(x: Tensor, scale: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> Answer:
    """Return whether the kernel takes the arguments of ``static_scaled_fp8_quant``."""
    if not _dynamo() and fits.static_scaled_fp8_quant(x, scale, dtype):
        return True
    if dtype is not _FP8:
        return _other_fp8(dtype)
    return _refuse(x) or _refuse_scale(scale, x) or True


def dynamic_per_token_scaled_fp8_quant(
    x: Tensor, scale_ub: Tensor | None = None, dtype: torch.dtype = torch.float8_e4m3fn
) -> Answer:
    """Return whether the kernel takes the arguments of ``dynamic_per_token_scaled_fp8_quant``."""
    if not _dynamo() and fits.dynamic_per_token_scaled_fp8_quant(x, scale_ub, dtype):
        return True
    return _refuse_token(x, scale_ub, dtype) or True


def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox: bool = True
) -> Answer:
    """Return whether the kernel takes the arguments of ``rotary_embedding``, of which it writes query and key."""
    if not _dynamo() and fits.rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox):
        return True
    if not query.is_cuda:
        return _other_device("query", query)
    device, dtype = query.get_device(), query.dtype
    if dtype not in _FLOATS:
        return _other_dtype("query", dtype)
    if positions.dtype not in _POSITIONS:
        return f"positions of {positions.dtype}, and the kernel reads int64 and int32"
    if positions.stride() != _DENSE and (positions.ndim != 1 or positions.numel() > 1):
        return "positions are not dense in one dimension"
    tokens = positions.shape[0]
    cache_dtype = cos_sin_cache.dtype
    if key.dtype is not dtype or (cache_dtype is not _FLOAT and cache_dtype is not dtype):
        return (
            f"query of {dtype}, key of {key.dtype} and cos_sin_cache of {cache_dtype}: one dtype, or the cache float32"
        )
    if key.get_device() != device or cos_sin_cache.get_device() != device or positions.get_device() != device:
        return "the arguments are on several devices"
    cache_shape = cos_sin_cache.shape
    if len(cache_shape) != 2 or cache_shape[1] % 2 or not 0 < cache_shape[1] <= head_size or not cache_shape[0]:
        return f"cos_sin_cache of shape {tuple(cache_shape)} does not fit head_size {head_size}"
    if not cos_sin_cache.is_contiguous() and cos_sin_cache.stride(1) != 1:
        return "cos_sin_cache is not dense in its last dimension"
    return (
        _refuse_heads("query", query, tokens, head_size)
        or _refuse_heads("key", key, tokens, head_size)
        or (_with_grad() and (query.requires_grad or key.requires_grad or cos_sin_cache.requires_grad) and _GRAD)
        or True
    )


def reshape_and_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> Answer:
    """Return whether the kernel takes the arguments of ``ops.reshape_and_cache_``."""
    if not key.is_cuda:
        return _other_device("key", key)
    dtype, device = key.dtype, key.device
    if dtype not in _CACHED:
        return _other_dtype("key", dtype)
    for name, tensor in (("value", value), ("key_cache", key_cache), ("value_cache", value_cache)):
        if tensor.dtype is not dtype:
            return f"key of {dtype} and {name} of {tensor.dtype}: the kernel copies, it does not convert"
        if tensor.device != device:
            return _two_devices(name, tensor, key)
    if slot_mapping.dtype not in _POSITIONS or slot_mapping.stride() != _DENSE or slot_mapping.device != device:
        return "slot_mapping is not dense in one dimension, int64 or int32, on key's device"
    if key.ndim != 3 or value.shape != key.shape or key_cache.ndim != 4:
        return f"key {tuple(key.shape)}, value {tuple(value.shape)} and key_cache {tuple(key_cache.shape)} do not fit"
    if key_cache.shape[2:] != key.shape[1:] or value_cache.shape != key_cache.shape:
        return f"caches {tuple(key_cache.shape)} and {tuple(value_cache.shape)} do not fit heads {tuple(key.shape[1:])}"
    if slot_mapping.shape[0] > key.shape[0]:
        return f"{slot_mapping.shape[0]} slots for {key.shape[0]} tokens"
    heads = (key.shape[2], 1)
    if key.stride()[1:] != heads or value.stride()[1:] != heads:
        return "the heads of a token do not lie side by side in key or value"
    block = (key.shape[1] * key.shape[2], *heads)
    if key_cache.stride()[1:] != block or value_cache.stride()[1:] != block:
        return "the rows of a block do not lie side by side in a cache"
    return _refuse_overlap("key_cache", key_cache) or _refuse_overlap("value_cache", value_cache) or True


# -- what several have in common: each returns the reason, or a false value


def _refuse(x: Tensor) -> Answer:
    """Look at the rows that come in."""
    if not x.is_cuda:
        return _other_device("x", x)
    if x.dtype not in _FLOATS:
        return _other_dtype("x", x.dtype)
    shape = x.shape
    if not shape:
        return "x has no dimension"
    if not _NARROW <= shape[-1] < _LIMIT and (shape[-1] >= _LIMIT or x.numel() >= _LIMIT * max(shape[-1], 1)):
        return f"x of shape {tuple(shape)} has more rows or columns than a launch"
    if not x.is_contiguous():
        return _refuse_strides("x", x)
    return _with_grad() and x.requires_grad and _GRAD


def _refuse_token(x: Tensor, scale_ub: Tensor | None, dtype: torch.dtype) -> Answer:
    if dtype is not _FP8:
        return _other_fp8(dtype)
    return _refuse(x) or (x.shape[-1] == 0 and _EMPTY) or (scale_ub is not None and _refuse_scale(scale_ub, x))


def _refuse_weight(weight: Tensor, x: Tensor) -> Answer:
    if weight.dtype is not x.dtype:
        return f"weight of {weight.dtype} beside x of {x.dtype}: the kernels multiply in one dtype"
    if weight.get_device() != x.get_device():
        return _two_devices("weight", weight, x)
    if weight.stride() != _DENSE or weight.numel() != x.shape[-1]:
        return f"weight of shape {tuple(weight.shape)} is not one dense row of x's last dimension, {x.shape[-1]}"
    return _with_grad() and weight.requires_grad and _GRAD


def _refuse_residual(x: Tensor, residual: Tensor) -> Answer:
    if residual.dtype is not x.dtype:
        return f"x_residual of {residual.dtype} beside x of {x.dtype}: the kernels add in one dtype"
    if residual.get_device() != x.get_device():
        return _two_devices("x_residual", residual, x)
    if residual.shape != x.shape:
        return _SHAPES
    if not residual.is_contiguous():
        return _refuse_strides("x_residual", residual)
    return _with_grad() and residual.requires_grad and _GRAD


def _refuse_scale(scale: Tensor, x: Tensor) -> Answer:
    if scale.dtype is not _FLOAT:
        return f"a scale of {scale.dtype}: scales are float32"
    if scale.get_device() != x.get_device():
        return _two_devices("the scale", scale, x)
    return scale.numel() != 1 and f"a scale of shape {tuple(scale.shape)} is not one number"


def _refuse_strides(name: str, x: Tensor) -> Answer:
    """Look at rows that are not dense."""
    strides = x.stride()
    if strides[-1] != 1 and x.shape[-1] > 1:
        return f"{name} is not dense in its last dimension"
    if len(strides) > 3 and rows_of(x.shape, strides) is None:  # up to two leading dimensions always fit
        return f"{name} has strides {strides} that are not those of two leading dimensions"
    return _with_grad() and x.requires_grad and _GRAD


def _refuse_overlap(name: str, x: Tensor) -> Answer:
    return not lies_apart(x.shape, x.stride()) and f"{name} is written, and its elements share memory"


def _refuse_heads(name: str, x: Tensor, tokens: int, head_size: int) -> Answer:
    """Look at query or key: (tokens, heads * head_size) or (tokens, heads, head_size)."""
    shape = x.shape
    rank = len(shape)
    if rank == 2:
        fits = shape[0] == tokens and shape[1] % head_size == 0
    else:
        fits = rank == 3 and shape[0] == tokens and shape[2] == head_size
    if not fits:
        return f"{name} of shape {tuple(shape)} is not {tokens} rows of whole heads of {head_size}"
    strides = x.stride()
    if strides[-1] != 1:
        return f"{name} is not dense in its last dimension"
    if rank == 2 and strides[0] >= shape[1]:
        return False
    return not x.is_contiguous() and _refuse_overlap(name, x)


def _other_device(name: str, x: Tensor) -> str:
    return f"{name} is on {x.device}, and the kernels run on CUDA"


def _two_devices(name: str, other: Tensor, x: Tensor) -> str:
    return f"{name} is on {other.device} and x on {x.device}"


def _other_dtype(name: str, dtype: torch.dtype) -> str:
    return f"no kernel for {name} of {dtype}"


def _other_fp8(dtype: torch.dtype) -> str:
    return f"no kernel that quantises to {dtype}"
