"""Quantisation to an 8-bit float with a scale that is given."""

from __future__ import annotations

import torch
from torch import Tensor

from opdock.ir.ops._fp8 import allow_one_step, fp8_max, quantise, scalar, tokens
from opdock.ir.ops._numerics import widen
from opdock.ir.registering import register_op


@register_op(activations=["x"], batch_invariant=True)
def static_scaled_fp8_quant(x: Tensor, scale: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    """Divide x by one scale and round it to an 8-bit float.

    q[i] = clamp(x[i] * (1 / scale), -max, max), with max the largest number of dtype, 224 for float8_e4m3fnuz.

    Rounding points: computed in float32 (float64 stays): the reciprocal is rounded, then the product, then q, to
    the nearest, ties to even. NaN stays NaN; infinities become max.

    Shapes: x any; scale one element; returns like x, dense.
    Dtypes: x float16, bfloat16, float32, float64; scale float32; returns dtype.
    Args: scale, of a step of 1 in q, in the unit of x, > 0; dtype, float8_e4m3fn, float8_e4m3fnuz, float8_e5m2 or
        float8_e5m2fnuz.
    Mutates: nothing.
    Batch: invariant; each element on its own.
    Raises: ShapeError if scale is not one number; DtypeError if it is not float32 or dtype is no 8-bit float.
    Source: Micikevicius et al. 2022, arXiv:2209.05433; vLLM, csrc/quantization (static_scaled_fp8_quant).
    """
    limit = fp8_max(dtype, "static_scaled_fp8_quant")
    return quantise(widen(x), scalar(scale, "scale", "static_scaled_fp8_quant"), limit, dtype)


@static_scaled_fp8_quant.register_input_generator
def _inputs(
    num_tokens: int = 8,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    fp8_dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor, torch.dtype]:
    x = tokens(num_tokens, hidden_size, dtype, device)
    # Calibrated on rows without outliers, which saturate.
    return x, torch.full((1,), 8.0 / fp8_max(fp8_dtype, "inputs"), device=device), fp8_dtype


allow_one_step(static_scaled_fp8_quant)
