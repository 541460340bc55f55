"""RMS normalisation followed by quantisation with a scale for each row."""

from __future__ import annotations

import torch
from torch import Tensor

from opdock.ir.ops._fp8 import allow_one_step, tokens
from opdock.ir.ops.dynamic_per_token_scaled_fp8_quant import dynamic_per_token_scaled_fp8_quant
from opdock.ir.ops.rms_norm import rms_norm
from opdock.ir.registering import register_op


@register_op(activations=["x"], by_rows=True)
def rms_norm_dynamic_per_token_fp8_quant(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    scale_ub: Tensor | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor]:
    """Normalise each row of x by its root mean square, and quantise it with a scale of its own.

    q, scales = dynamic_per_token_scaled_fp8_quant(rms_norm(x, weight, epsilon), scale_ub, dtype)

    Rounding points: those of the two, so the normalised row is rounded to x's dtype before its largest element is
    taken, and fusing changes no bit. A kernel that does not round it is within tolerance.

    Shapes: x (..., hidden), hidden > 0; weight (hidden,) or None; scale_ub one element or None; returns q like x,
        scales (..., 1), dense.
    Dtypes: x float16, bfloat16, float32, float64; weight any of them; scale_ub float32; returns dtype and float32.
    Args: epsilon, added to the mean square, no unit, > 0; scale_ub, bound of the normalised row's largest element,
        no unit, > 0; dtype, an 8-bit float.
    Mutates: nothing.
    Batch: not invariant; see rms_norm.
    Raises: what the two raise, in their names: ShapeError if hidden differs or is 0 or scale_ub is not one number;
        DtypeError if scale_ub is not float32 or dtype is no 8-bit float.
    Source: Zhang and Sennrich 2019, arXiv:1910.07467; vLLM, csrc/quantization/fused_kernels.
    """
    y = rms_norm.op.native(x, weight, epsilon)
    return dynamic_per_token_scaled_fp8_quant.op.native(y, scale_ub, dtype)  # type: ignore[no-any-return]


@rms_norm_dynamic_per_token_fp8_quant.register_input_generator
def _inputs(
    num_tokens: int = 8,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    epsilon: float = 1e-5,
    fp8_dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor, float, None, torch.dtype]:
    x, weight = tokens(num_tokens, hidden_size, dtype, device), torch.randn(hidden_size, dtype=dtype, device=device)
    return x, weight, epsilon, None, fp8_dtype


allow_one_step(rms_norm_dynamic_per_token_fp8_quant)
# The scales: a kernel that does not round the normalised row misses the roundings before and after the weight, each
# half of bfloat16's step of 2^-7. No absolute tolerance: scales are small.
rms_norm_dynamic_per_token_fp8_quant.override_tolerance(torch.float32, atol=0.0, rtol=8e-3)
