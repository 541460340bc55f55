"""Which arguments the kernels take, or why not: by metadata alone, so that it works on fake tensors too.

One function for each IR op, with its parameters. The usual arguments are answered by the first lines.
"""

# ruff: noqa: ARG001, FBT001, FBT002 - predicates have the parameters of the ops

from __future__ import annotations

import torch
from torch import Tensor, dtype, float8_e4m3fn

from opdock.nn.kernels.triton import interpreted
from opdock.nn.kernels.triton.layout import split_rows, why_not_rows

MAX_HIDDEN = 32768
"""The longest row that one program holds."""
DTYPES = frozenset((torch.float16, torch.bfloat16, torch.float32))
FP8_DTYPES = frozenset((torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz))
_INTEGERS = frozenset((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8))
_ON_CPU = interpreted()


def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> bool | str:
    """Return whether the kernel takes the arguments, or why not."""
    if x.is_cuda is not _ON_CPU and x.dtype in DTYPES and x.dim() and x.is_contiguous() and variance_size is None:
        if weight is None:
            if x.shape[-1] <= MAX_HIDDEN:
                return True
        elif (
            weight.dtype in DTYPES
            and weight.dim() == 1
            and x.shape[-1] == weight.numel() <= MAX_HIDDEN
            and weight.is_contiguous()
            and weight.get_device() == x.get_device()
        ):
            return True
    return _tensor("x", x) or _norm(x, weight, variance_size) or _rows(x) or True


def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool | str:
    """Return whether the kernel takes the arguments, or why not; it writes x and x_residual."""
    if (
        _is_usual(x)
        and x_residual.dtype is x.dtype
        and x_residual.is_contiguous()
        and x_residual.shape == x.shape
        and variance_size is None
        and (weight is None or _fits(x, weight))
        and x_residual.get_device() == x.get_device()
    ):
        return True
    if x_residual.dtype is not x.dtype:
        return f"x_residual of {x_residual.dtype} cannot hold the sum in {x.dtype}"
    return (
        _tensor("x", x) or _residual(x, x_residual) or _norm(x, weight, variance_size) or _rows(x, x_residual) or True
    )


def rms_norm_static_fp8_quant(
    x: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: dtype = float8_e4m3fn
) -> bool | str:
    """Return whether the kernel takes the arguments, or why not."""
    if _is_usual(x) and dtype in FP8_DTYPES and (weight is None or _fits(x, weight)) and _is_scale(x, scale):
        return True
    return _tensor("x", x) or _norm(x, weight, None) or _quantised(x, scale, "scale", dtype) or _rows(x) or True


def rms_norm_dynamic_per_token_fp8_quant(
    x: Tensor, weight: Tensor | None, epsilon: float, scale_ub: Tensor | None = None, dtype: dtype = float8_e4m3fn
) -> bool | str:
    """Return whether the kernel takes the arguments, or why not."""
    if _is_usual(x) and dtype in FP8_DTYPES and (weight is None or _fits(x, weight)) and scale_ub is None:
        return True
    return _tensor("x", x) or _norm(x, weight, None) or _quantised(x, scale_ub, "scale_ub", dtype) or _rows(x) or True


def fused_add_rms_norm_static_fp8_quant(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: dtype = float8_e4m3fn
) -> bool | str:
    """Return whether the kernel takes the arguments, or why not."""
    return (
        _tensor("x", x)
        or _residual(x, x_residual)
        or _norm(x, weight, None)
        or _quantised(x, scale, "scale", dtype)
        or _rows(x, x_residual)
        or True
    )


def fused_add_rms_norm_dynamic_per_token_fp8_quant(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    scale_ub: Tensor | None = None,
    dtype: dtype = float8_e4m3fn,
) -> bool | str:
    """Return whether the kernel takes the arguments, or why not."""
    return (
        _tensor("x", x)
        or _residual(x, x_residual)
        or _norm(x, weight, None)
        or _quantised(x, scale_ub, "scale_ub", dtype)
        or _rows(x, x_residual)
        or True
    )


def silu_and_mul(x: Tensor) -> bool | str:
    """Return whether the kernel takes the arguments, or why not."""
    if x.is_cuda is not _ON_CPU and x.dtype in DTYPES and x.is_contiguous() and x.dim() and not x.shape[-1] % 2:
        return True
    return _tensor("x", x) or _halves(x) or _rows(x) or True


def gelu_and_mul(x: Tensor, approximate: str = "none") -> bool | str:
    """Return whether the kernel takes the arguments, or why not."""
    if approximate not in ("none", "tanh"):
        return f"approximate={approximate!r} is neither none nor tanh"
    return silu_and_mul(x)


def silu_and_mul_static_fp8_quant(x: Tensor, scale: Tensor, dtype: dtype = float8_e4m3fn) -> bool | str:
    """Return whether the kernel takes the arguments, or why not."""
    return _tensor("x", x) or _halves(x) or _quantised(x, scale, "scale", dtype) or _rows(x) or True


def silu_and_mul_dynamic_per_token_fp8_quant(
    x: Tensor, scale_ub: Tensor | None = None, dtype: dtype = float8_e4m3fn
) -> bool | str:
    """Return whether the kernel takes the arguments, or why not."""
    longest = _tensor("x", x) or _halves(x) or _longest(x.shape[-1] // 2)
    return longest or _quantised(x, scale_ub, "scale_ub", dtype) or _rows(x) or True


def static_scaled_fp8_quant(x: Tensor, scale: Tensor, dtype: dtype = float8_e4m3fn) -> bool | str:
    """Return whether the kernel takes the arguments, or why not."""
    no = _tensor("x", x) or _quantised(x, scale, "scale", dtype)
    return no or (True if x.is_contiguous() else _rows(x) or True)


def dynamic_per_token_scaled_fp8_quant(
    x: Tensor, scale_ub: Tensor | None = None, dtype: dtype = float8_e4m3fn
) -> bool | str:
    """Return whether the kernel takes the arguments, or why not."""
    no = _tensor("x", x) or ("x has no dimension" if not x.dim() else _longest(x.shape[-1]))
    return no or _quantised(x, scale_ub, "scale_ub", dtype) or _rows(x) or True


def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox: bool = True
) -> bool | str:
    """Return whether the kernel takes the arguments, or why not; it writes query and key."""
    no = _tensor("query", query) or _tensor("key", key) or _tensor("cos_sin_cache", cos_sin_cache)
    if no:
        return no
    device = query.get_device()
    if positions.dtype not in _INTEGERS or positions.dim() != 1:
        return f"positions of {positions.dtype} and shape {tuple(positions.shape)}"
    if not positions.get_device() == key.get_device() == cos_sin_cache.get_device() == device:
        return "tensors are on several devices"
    if key.dtype is not query.dtype:
        return f"query of {query.dtype} and key of {key.dtype}"
    if cos_sin_cache.dim() != 2 or cos_sin_cache.stride(1) != 1:
        return "cos_sin_cache is no table with dense rows"
    rot_dim = cos_sin_cache.shape[1]
    if rot_dim % 2 or not 0 < rot_dim <= head_size or rot_dim > 2 * MAX_HIDDEN:
        return f"rot_dim {rot_dim} does not fit head_size {head_size}"
    for name, x in (("query", query), ("key", key)):
        dims = x.dim()
        whole = x.shape[-1] == head_size if dims == 3 else dims == 2 and not x.shape[1] % head_size
        if not whole or x.shape[0] != positions.shape[0]:
            return f"{name} of shape {tuple(x.shape)} has no heads of {head_size} for each position"
        no = why_not_rows(name, x)
        if no:
            return no
    return True


def _is_usual(x: Tensor) -> bool:
    return (
        x.is_cuda is not _ON_CPU
        and x.dtype in DTYPES
        and x.is_contiguous()
        and x.dim() > 0
        and x.shape[-1] <= MAX_HIDDEN
    )


def _fits(x: Tensor, weight: Tensor) -> bool:
    return (
        weight.dtype in DTYPES
        and weight.is_contiguous()
        and weight.shape[0] == x.shape[-1]
        and weight.dim() == 1
        and weight.get_device() == x.get_device()
    )


def _is_scale(x: Tensor, scale: Tensor) -> bool:
    return scale.dtype is torch.float32 and scale.numel() == 1 and scale.get_device() == x.get_device()


def _tensor(name: str, t: Tensor) -> str:
    if t.is_cuda is _ON_CPU:
        return f"{name} is on {t.device.type}" + (", and kernels are interpreted: on the CPU alone" if _ON_CPU else "")
    if t.dtype not in DTYPES:
        return f"no kernel for {name} of {t.dtype}"
    return ""


def _longest(hidden: int) -> str:
    return f"rows of {hidden}: at most {MAX_HIDDEN} fit into one program" if hidden > MAX_HIDDEN else ""


def _norm(x: Tensor, weight: Tensor | None, variance_size: int | None) -> str:
    if not x.dim():
        return "x has no dimension"
    hidden = x.shape[-1]
    if variance_size is not None and not 0 < variance_size <= hidden:
        return f"variance_size {variance_size} is not between 1 and the hidden size {hidden}"
    if weight is not None:
        if weight.dtype not in DTYPES:
            return f"no kernel for weight of {weight.dtype}"
        if weight.dim() != 1 or weight.shape[0] != hidden:
            return f"weight of shape {tuple(weight.shape)} does not fit rows of {hidden}"
        if hidden > 1 and weight.stride(0) != 1:
            return f"weight has stride {weight.stride(0)}, not 1"
        if weight.get_device() != x.get_device():
            return f"weight is on {weight.device}, x on {x.device}"
    return _longest(hidden)


def _residual(x: Tensor, residual: Tensor) -> str:
    no = _tensor("x_residual", residual)
    if no:
        return no
    if residual.shape != x.shape:
        return f"x_residual of shape {tuple(residual.shape)}, x of {tuple(x.shape)}"
    return "" if residual.get_device() == x.get_device() else f"x_residual is on {residual.device}, x on {x.device}"


def _quantised(x: Tensor, scale: Tensor | None, name: str, kind: dtype) -> str:
    if kind not in FP8_DTYPES:
        return f"{kind} is no 8-bit float"
    if scale is not None:
        if scale.dtype is not torch.float32 or scale.numel() != 1:
            return f"{name} of {scale.dtype} and shape {tuple(scale.shape)} is not one float32"
        if scale.get_device() != x.get_device():
            return f"{name} is on {scale.device}, x on {x.device}"
    return ""


def _halves(x: Tensor) -> str:
    if not x.dim() or x.shape[-1] % 2:
        return f"x of shape {tuple(x.shape)} has no halves"
    return ""


def _rows(x: Tensor, *others: Tensor) -> str:
    names = ("x", "x_residual")
    for name, t in zip(names, (x, *others), strict=False):
        no = "" if t.is_contiguous() else why_not_rows(name, t)
        if no:
            return no
    tensors = (x, *others)
    if all(t.is_contiguous() for t in tensors) or split_rows(*tensors) is not None:
        return ""
    return f"rows lie along more than two strides: {', '.join(str(tuple(t.stride())) for t in tensors)}"
