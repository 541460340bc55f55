"""Quantisation to an 8-bit float with a scale for each row."""

from __future__ import annotations

import torch
from torch import Tensor

from opdock.ir.ops._fp8 import allow_one_step, quantise_per_token, tokens
from opdock.ir.registering import register_op


@register_op(activations=["x"], batch_invariant=True)
def dynamic_per_token_scaled_fp8_quant(
    x: Tensor, scale_ub: Tensor | None = None, dtype: torch.dtype = torch.float8_e4m3fn
) -> tuple[Tensor, Tensor]:
    """Divide each row of x by a scale that maps its largest element to the largest 8-bit float.

    scale[i] = max(min(max_j |x[i, j]|, scale_ub) / max, 1 / (512 max));
    q[i, j] = clamp(x[i, j] * (1 / scale[i]), -max, max), with max the largest number of dtype, 224 for float8_e4m3fnuz.

    Rounding points: computed in float32 (float64 stays), but scale is rounded to float32 and used as it is
    returned; then the reciprocal is rounded, the product, and q, to the nearest, ties to even.

    A row with a NaN is NaN as a whole, its scale too, whatever scale_ub: a fault stays visible. A row with an
    infinity has an infinite scale, zeros, and NaN for the infinity; with scale_ub it saturates. A row of zeros has
    the least scale. No row depends on another.

    Shapes: x (..., hidden), hidden > 0; scale_ub one element or None; returns q like x, scales (..., 1), dense.
    Dtypes: x float16, bfloat16, float32, float64; scale_ub float32; returns dtype and float32.
    Args: scale_ub, bound of the row's largest element (not of the scale), in the unit of x, > 0; dtype,
        float8_e4m3fn, float8_e4m3fnuz, float8_e5m2 or float8_e5m2fnuz.
    Mutates: nothing.
    Batch: invariant; a maximum does not depend on the order.
    Raises: ShapeError if hidden is 0 or scale_ub is not one number; DtypeError if scale_ub is not float32 or dtype
        is no 8-bit float.
    Source: Micikevicius et al. 2022, arXiv:2209.05433; vLLM, csrc/quantization
        (dynamic_per_token_scaled_fp8_quant).
    """
    return quantise_per_token(x, scale_ub, dtype, "dynamic_per_token_scaled_fp8_quant")


@dynamic_per_token_scaled_fp8_quant.register_input_generator
def _inputs(
    num_tokens: int = 8,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    fp8_dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, None, torch.dtype]:
    return tokens(num_tokens, hidden_size, dtype, device), None, fp8_dtype


allow_one_step(dynamic_per_token_scaled_fp8_quant)
# The scale is a quotient of two exact numbers, and may be far below the default's absolute tolerance.
dynamic_per_token_scaled_fp8_quant.override_tolerance(torch.float32, atol=0.0, rtol=1.3e-6)
