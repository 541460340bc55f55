"""A norm or an activation whose result is quantised to 8-bit floats at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opdock.compile.fusion import Fusion
from opdock.ir import ops

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def _norm_static(x: Tensor, weight: Tensor, scale: Tensor, epsilon: float, dtype: torch.dtype) -> Tensor:
    return ops.static_scaled_fp8_quant(ops.rms_norm(x, weight, epsilon), scale, dtype)


def _norm_static_together(x: Tensor, weight: Tensor, scale: Tensor, epsilon: float, dtype: torch.dtype) -> Tensor:
    return ops.rms_norm_static_fp8_quant(x, weight, scale, epsilon, dtype)


def _norm_token(
    x: Tensor, weight: Tensor, epsilon: float, scale_ub: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    q, scales = _two(ops.dynamic_per_token_scaled_fp8_quant(ops.rms_norm(x, weight, epsilon), scale_ub, dtype))
    return q, scales


def _norm_token_together(
    x: Tensor, weight: Tensor, epsilon: float, scale_ub: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    q, scales = _two(ops.rms_norm_dynamic_per_token_fp8_quant(x, weight, epsilon, scale_ub, dtype))
    return q, scales


def _add_norm_static(
    x: Tensor, residual: Tensor, weight: Tensor, scale: Tensor, epsilon: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    out, total = _two(ops.fused_add_rms_norm(x, residual, weight, epsilon))
    return ops.static_scaled_fp8_quant(out, scale, dtype), total


def _add_norm_static_together(
    x: Tensor, residual: Tensor, weight: Tensor, scale: Tensor, epsilon: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    q, total = _two(ops.fused_add_rms_norm_static_fp8_quant(x, residual, weight, scale, epsilon, dtype))
    return q, total


def _add_norm_token(
    x: Tensor, residual: Tensor, weight: Tensor, epsilon: float, scale_ub: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    out, total = _two(ops.fused_add_rms_norm(x, residual, weight, epsilon))
    q, scales = _two(ops.dynamic_per_token_scaled_fp8_quant(out, scale_ub, dtype))
    return q, scales, total


def _add_norm_token_together(
    x: Tensor, residual: Tensor, weight: Tensor, epsilon: float, scale_ub: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    made = ops.fused_add_rms_norm_dynamic_per_token_fp8_quant(x, residual, weight, epsilon, scale_ub, dtype)
    return made[0], made[1], made[2]


def _silu_static(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    return ops.static_scaled_fp8_quant(ops.silu_and_mul(x), scale, dtype)


def _silu_static_together(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    return ops.silu_and_mul_static_fp8_quant(x, scale, dtype)


def _silu_token(x: Tensor, scale_ub: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    q, scales = _two(ops.dynamic_per_token_scaled_fp8_quant(ops.silu_and_mul(x), scale_ub, dtype))
    return q, scales


def _silu_token_together(x: Tensor, scale_ub: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    q, scales = _two(ops.silu_and_mul_dynamic_per_token_fp8_quant(x, scale_ub, dtype))
    return q, scales


def _two(results: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Take two results by number: a tracer does not know how many there are."""
    return results[0], results[1]


# No bit changes: the fused ops are defined as these compositions.
FP8_QUANT = (
    Fusion("rms_norm_static_fp8_quant", _norm_static, _norm_static_together),
    Fusion("rms_norm_dynamic_per_token_fp8_quant", _norm_token, _norm_token_together),
    Fusion("fused_add_rms_norm_static_fp8_quant", _add_norm_static, _add_norm_static_together),
    Fusion("fused_add_rms_norm_dynamic_per_token_fp8_quant", _add_norm_token, _add_norm_token_together),
    Fusion("silu_and_mul_static_fp8_quant", _silu_static, _silu_static_together),
    Fusion("silu_and_mul_dynamic_per_token_fp8_quant", _silu_token, _silu_token_together),
)
