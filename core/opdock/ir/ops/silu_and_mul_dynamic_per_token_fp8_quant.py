"""The gated activation of Llama-like models, followed by quantisation with a scale for each row."""

from __future__ import annotations

import torch
from torch import Tensor

from opdock.ir.ops._fp8 import allow_one_step, tokens
from opdock.ir.ops.dynamic_per_token_scaled_fp8_quant import dynamic_per_token_scaled_fp8_quant
from opdock.ir.ops.silu_and_mul import silu_and_mul
from opdock.ir.registering import register_op


@register_op(activations=["x"], by_rows=True)
def silu_and_mul_dynamic_per_token_fp8_quant(
    x: Tensor, scale_ub: Tensor | None = None, dtype: torch.dtype = torch.float8_e4m3fn
) -> tuple[Tensor, Tensor]:
    """Multiply the SiLU of the first half of x by the second half, and quantise each row with a scale of its own.

    q, scales = dynamic_per_token_scaled_fp8_quant(silu_and_mul(x), scale_ub, dtype)

    Rounding points: those of the two, so SiLU and the product are rounded to x's dtype before the largest element
    is taken, and fusing changes no bit. A kernel that rounds once is within tolerance.

    Shapes: x (..., 2 * d), d > 0; scale_ub one element or None; returns q (..., d), scales (..., 1), dense.
    Dtypes: x float16, bfloat16, float32, float64; scale_ub float32; returns dtype and float32.
    Args: scale_ub, bound of a row's largest product, in its unit, > 0; dtype, an 8-bit float.
    Mutates: nothing.
    Batch: not invariant; see silu_and_mul.
    Raises: what the two raise, in their names: ShapeError if the last dimension is odd or 0 or scale_ub is not one
        number; DtypeError if scale_ub is not float32 or dtype is no 8-bit float.
    Source: Shazeer 2020, arXiv:2002.05202 (SwiGLU); vLLM, csrc/quantization/activation_kernels.cu.
    """
    return dynamic_per_token_scaled_fp8_quant.op.native(silu_and_mul.op.native(x), scale_ub, dtype)  # type: ignore[no-any-return]


@silu_and_mul_dynamic_per_token_fp8_quant.register_input_generator
def _inputs(
    num_tokens: int = 8,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    fp8_dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, None, torch.dtype]:
    return tokens(num_tokens, 2 * hidden_size, dtype, device), None, fp8_dtype


allow_one_step(silu_and_mul_dynamic_per_token_fp8_quant)
# The scales: a kernel that rounds once misses the roundings of SiLU and of the product, each half of bfloat16's step
# of 2^-7. No absolute tolerance: scales are small.
silu_and_mul_dynamic_per_token_fp8_quant.override_tolerance(torch.float32, atol=0.0, rtol=8e-3)
