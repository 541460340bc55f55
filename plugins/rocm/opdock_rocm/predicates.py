"""Which arguments the HIP kernels take: pure functions of metadata, each with the parameters of its IR op.

Each returns True, or the reason why not. What they have in common with Triton's kernels (devices, dtypes, rows that lie
along two strides) is asked of those; here is what else they need.
"""

# ruff: noqa: FBT001, FBT002 - the parameters are those of the IR ops
from __future__ import annotations

import torch
from torch import Tensor

from opdock.nn.kernels.triton import takes
from opdock_rocm.platform import RocmPlatform

Answer = bool | str

_E4M3 = torch.float8_e4m3fn
_FLOAT = torch.float32


def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Answer:
    """Return whether the kernel takes the arguments of ``rms_norm``."""
    return _norm(x, weight, variance_size) or takes.rms_norm(x, weight, epsilon, variance_size)


def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> Answer:
    """Return whether the kernel takes the arguments of ``fused_add_rms_norm``, both of which it writes."""
    if x is x_residual:
        return "x and x_residual are one tensor, and both are written"
    return _norm(x, weight, variance_size, x_residual) or takes.fused_add_rms_norm(
        x, x_residual, weight, epsilon, variance_size
    )


def rms_norm_static_fp8_quant(
    x: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: torch.dtype = _E4M3
) -> Answer:
    """Return whether the kernel takes the arguments of ``rms_norm_static_fp8_quant``."""
    return _norm(x, weight) or _fp8(dtype) or takes.rms_norm_static_fp8_quant(x, weight, scale, epsilon, dtype)


def rms_norm_dynamic_per_token_fp8_quant(
    x: Tensor, weight: Tensor | None, epsilon: float, scale_ub: Tensor | None = None, dtype: torch.dtype = _E4M3
) -> Answer:
    """Return whether the kernel takes the arguments of ``rms_norm_dynamic_per_token_fp8_quant``."""
    return (
        _norm(x, weight)
        or _fp8(dtype)
        or _empty(x)
        or takes.rms_norm_dynamic_per_token_fp8_quant(x, weight, epsilon, scale_ub, dtype)
    )


def fused_add_rms_norm_static_fp8_quant(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: torch.dtype = _E4M3
) -> Answer:
    """Return whether the kernel takes the arguments of ``fused_add_rms_norm_static_fp8_quant``."""
    return (
        _norm(x, weight, None, x_residual)
        or _fp8(dtype)
        or takes.fused_add_rms_norm_static_fp8_quant(x, x_residual, weight, scale, epsilon, dtype)
    )


def fused_add_rms_norm_dynamic_per_token_fp8_quant(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    scale_ub: Tensor | None = None,
    dtype: torch.dtype = _E4M3,
) -> Answer:
    """Return whether the kernel takes the arguments of ``fused_add_rms_norm_dynamic_per_token_fp8_quant``."""
    return (
        _norm(x, weight, None, x_residual)
        or _fp8(dtype)
        or _empty(x)
        or takes.fused_add_rms_norm_dynamic_per_token_fp8_quant(x, x_residual, weight, epsilon, scale_ub, dtype)
    )


def silu_and_mul(x: Tensor) -> Answer:
    """Return whether the kernel takes the argument of ``silu_and_mul``."""
    return _grad(x) or takes.silu_and_mul(x)


def gelu_and_mul(x: Tensor, approximate: str = "none") -> Answer:
    """Return whether the kernel takes the arguments of ``gelu_and_mul``."""
    return _grad(x) or takes.gelu_and_mul(x, approximate)


def silu_and_mul_static_fp8_quant(x: Tensor, scale: Tensor, dtype: torch.dtype = _E4M3) -> Answer:
    """Return whether the kernel takes the arguments of ``silu_and_mul_static_fp8_quant``."""
    return _grad(x) or _fp8(dtype) or takes.silu_and_mul_static_fp8_quant(x, scale, dtype)


def silu_and_mul_dynamic_per_token_fp8_quant(
    x: Tensor, scale_ub: Tensor | None = None, dtype: torch.dtype = _E4M3
) -> Answer:
    """Return whether the kernel takes the arguments of ``silu_and_mul_dynamic_per_token_fp8_quant``."""
    no = _grad(x) or _fp8(dtype) or _empty(x)
    return no or takes.silu_and_mul_dynamic_per_token_fp8_quant(x, scale_ub, dtype)


def static_scaled_fp8_quant(x: Tensor, scale: Tensor, dtype: torch.dtype = _E4M3) -> Answer:
    """Return whether the kernel takes the arguments of ``static_scaled_fp8_quant``."""
    return _grad(x) or _fp8(dtype) or takes.static_scaled_fp8_quant(x, scale, dtype)


def dynamic_per_token_scaled_fp8_quant(x: Tensor, scale_ub: Tensor | None = None, dtype: torch.dtype = _E4M3) -> Answer:
    """Return whether the kernel takes the arguments of ``dynamic_per_token_scaled_fp8_quant``."""
    return _grad(x) or _fp8(dtype) or _empty(x) or takes.dynamic_per_token_scaled_fp8_quant(x, scale_ub, dtype)


def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox: bool = True
) -> Answer:
    """Return whether the kernel takes the arguments of ``rotary_embedding``, of which it writes query and key."""
    if positions.dtype not in (torch.int64, torch.int32) or (positions.dim() == 1 and positions.stride(0) != 1):
        return f"positions of {positions.dtype}, and the kernel reads dense int64 and int32"
    if cos_sin_cache.dtype not in (_FLOAT, query.dtype):
        return f"cos_sin_cache of {cos_sin_cache.dtype} beside query of {query.dtype}: the kernel reads float32 or that"
    if not cos_sin_cache.shape[0]:
        return "cos_sin_cache has no rows"
    return (
        _grad(query) or _grad(key) or takes.rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox)
    )


def _norm(x: Tensor, weight: Tensor | None, variance_size: int | None = None, residual: Tensor | None = None) -> str:
    if variance_size is not None:
        return "no kernel for a mean square over a part of the row"
    if weight is not None and weight.dtype is not x.dtype:
        return f"weight of {weight.dtype} beside x of {x.dtype}: the kernels multiply in one dtype"
    if residual is not None and residual.dtype is not x.dtype:
        return f"x_residual of {residual.dtype} beside x of {x.dtype}: the kernels add in one dtype"
    return (
        _grad(x) or (_grad(weight) if weight is not None else "") or (_grad(residual) if residual is not None else "")
    )


def _fp8(dtype: torch.dtype) -> str:
    mine = RocmPlatform.fp8_dtype()
    return "" if dtype is mine else f"{dtype}, and this GPU's kernels write {mine}"


def _empty(x: Tensor) -> str:
    return "" if x.dim() and x.shape[-1] else "rows without elements have no largest one"


def _grad(x: Tensor) -> str:
    return (
        "the kernels compute no gradients, and an input requires one"
        if x.requires_grad and torch.is_grad_enabled()
        else ""
    )
