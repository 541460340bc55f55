"""The gated activation of Llama-like models, followed by quantisation with a scale that is given."""

from __future__ import annotations

import torch
from torch import Tensor

from opdock.ir.ops._fp8 import allow_one_step, fp8_max, tokens
from opdock.ir.ops.silu_and_mul import silu_and_mul
from opdock.ir.ops.static_scaled_fp8_quant import static_scaled_fp8_quant
from opdock.ir.registering import register_op


@register_op(activations=["x"], by_rows=True)
def silu_and_mul_static_fp8_quant(x: Tensor, scale: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    """Multiply the SiLU of the first half of x by the second half, and quantise the product with one scale.

    q = static_scaled_fp8_quant(silu_and_mul(x), scale, dtype)

    Rounding points: those of the two, so SiLU and the product are rounded to x's dtype before q is, and fusing
    changes no bit. A kernel that rounds once is within tolerance.

    Shapes: x (..., 2 * d); scale one element; returns (..., d), dense.
    Dtypes: x float16, bfloat16, float32, float64; scale float32; returns dtype.
    Args: scale, of a step of 1 in q, in the unit of the product, > 0; dtype, an 8-bit float.
    Mutates: nothing.
    Batch: not invariant; see silu_and_mul.
    Raises: what the two raise, in their names: ShapeError if the last dimension is odd or scale is not one number;
        DtypeError if scale is not float32 or dtype is no 8-bit float.
    Source: Shazeer 2020, arXiv:2002.05202 (SwiGLU); vLLM, csrc/quantization/activation_kernels.cu.
    """
    return static_scaled_fp8_quant.op.native(silu_and_mul.op.native(x), scale, dtype)  # type: ignore[no-any-return]


@silu_and_mul_static_fp8_quant.register_input_generator
def _inputs(
    num_tokens: int = 8,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    fp8_dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor, torch.dtype]:
    x = tokens(num_tokens, 2 * hidden_size, dtype, device)
    return x, torch.full((1,), 8.0 / fp8_max(fp8_dtype, "inputs"), device=device), fp8_dtype


allow_one_step(silu_and_mul_static_fp8_quant)
