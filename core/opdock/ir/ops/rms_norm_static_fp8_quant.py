"""RMS normalisation followed by quantisation with a scale that is given."""

from __future__ import annotations

import torch
from torch import Tensor

from opdock.ir.ops._fp8 import allow_one_step, fp8_max, tokens
from opdock.ir.ops.rms_norm import rms_norm
from opdock.ir.ops.static_scaled_fp8_quant import static_scaled_fp8_quant
from opdock.ir.registering import register_op


@register_op(activations=["x"], by_rows=True)
def rms_norm_static_fp8_quant(
    x: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: torch.dtype = torch.float8_e4m3fn
) -> Tensor:
    """Normalise each row of x by its root mean square, and quantise it with one scale.

    q = static_scaled_fp8_quant(rms_norm(x, weight, epsilon), scale, dtype)

    Rounding points: those of the two, so the normalised row is rounded to x's dtype before it is quantised, and
    fusing changes no bit. A kernel that does not round it is within tolerance.

    Shapes: x (..., hidden); weight (hidden,) or None; scale one element; returns like x, dense.
    Dtypes: x float16, bfloat16, float32, float64; weight any of them; scale float32; returns dtype.
    Args: scale, of a step of 1 in q, no unit, > 0; epsilon, added to the mean square, no unit, > 0; dtype, an
        8-bit float.
    Mutates: nothing.
    Batch: not invariant; see rms_norm.
    Raises: what the two raise, in their names: ShapeError if hidden differs or scale is not one number; DtypeError
        if scale is not float32 or dtype is no 8-bit float.
    Source: Zhang and Sennrich 2019, arXiv:1910.07467; vLLM, csrc/layernorm_quant_kernels.cu.
    """
    return static_scaled_fp8_quant.op.native(rms_norm.op.native(x, weight, epsilon), scale, dtype)  # type: ignore[no-any-return]


@rms_norm_static_fp8_quant.register_input_generator
def _inputs(
    num_tokens: int = 8,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    epsilon: float = 1e-5,
    fp8_dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor, Tensor, float, torch.dtype]:
    x, weight = tokens(num_tokens, hidden_size, dtype, device), torch.randn(hidden_size, dtype=dtype, device=device)
    return x, weight, torch.full((1,), 8.0 / fp8_max(fp8_dtype, "inputs"), device=device), epsilon, fp8_dtype


allow_one_step(rms_norm_static_fp8_quant)
