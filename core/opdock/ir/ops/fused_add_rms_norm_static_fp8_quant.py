"""Residual addition and RMS normalisation, followed by quantisation with a scale that is given."""

from __future__ import annotations

import torch
from torch import Tensor

from opdock.ir.ops._fp8 import allow_one_step, fp8_max, tokens
from opdock.ir.ops.fused_add_rms_norm import fused_add_rms_norm
from opdock.ir.ops.static_scaled_fp8_quant import static_scaled_fp8_quant
from opdock.ir.registering import register_op


@register_op(activations=["x", "x_residual"], by_rows=True)
def fused_add_rms_norm_static_fp8_quant(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    scale: Tensor,
    epsilon: float,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor]:
    """Add the residual to x, normalise each row of the sum, and quantise it with one scale.

    y, residual = fused_add_rms_norm(x, x_residual, weight, epsilon);  q = static_scaled_fp8_quant(y, scale, dtype)

    Rounding points: those of the two, so the normalised row is rounded to x's dtype before it is quantised, and
    fusing changes no bit. A kernel that does not round it is within tolerance.

    Shapes: x, x_residual (..., hidden); weight (hidden,) or None; scale one element; returns q and the residual,
        like x.
    Dtypes: x, x_residual float16, bfloat16, float32, float64; weight any of them; scale float32; returns dtype and
        x's dtype.
    Args: scale, of a step of 1 in q, no unit, > 0; epsilon, added to the mean square, no unit, > 0; dtype, an
        8-bit float.
    Mutates: nothing.
    Batch: not invariant; see rms_norm.
    Raises: what the two raise, in their names: ShapeError if the shapes of x and x_residual or the hidden sizes
        differ or scale is not one number; DtypeError if scale is not float32 or dtype is no 8-bit float.
    Source: Zhang and Sennrich 2019, arXiv:1910.07467; vLLM, csrc/layernorm_quant_kernels.cu.
    """
    y, residual = fused_add_rms_norm.op.native(x, x_residual, weight, epsilon)
    return static_scaled_fp8_quant.op.native(y, scale, dtype), residual


@fused_add_rms_norm_static_fp8_quant.register_input_generator
def _inputs(
    num_tokens: int = 8,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    epsilon: float = 1e-5,
    fp8_dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor, Tensor, Tensor, float, torch.dtype]:
    x, weight = tokens(num_tokens, hidden_size, dtype, device), torch.randn(hidden_size, dtype=dtype, device=device)
    scale = torch.full((1,), 8.0 / fp8_max(fp8_dtype, "inputs"), device=device)
    return x, torch.randn_like(x), weight, scale, epsilon, fp8_dtype


allow_one_step(fused_add_rms_norm_static_fp8_quant)
