"""RMS normalisation."""

from __future__ import annotations

import torch
from torch import Tensor

from opdock.ir.ops._numerics import normalise, widen
from opdock.ir.registering import register_op


@register_op(by_rows=True)
def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    """Normalise each row of x by its root mean square.

    y[i, j] = x[i, j] / sqrt(mean_j(x[i, :variance_size]^2) + epsilon) * weight[j]

    Rounding points: x is widened to float32 (float64 stays); the normalised row is rounded to weight's dtype,
    multiplied there, and rounded to x's dtype. Without a weight it is rounded to x's dtype directly. A weight in
    float32 beside x in 16 bits is thus multiplied in float32, which is what Gemma's 1 + w needs.

    Shapes: x (..., hidden); weight (hidden,) or None; returns like x.
    Dtypes: x float16, bfloat16, float32, float64; weight any of them; returns x's dtype.
    Args: epsilon, added to the mean square, no unit, > 0; variance_size, columns whose mean square counts, None
        means all.
    Mutates: nothing.
    Batch: not invariant; torch's mean splits a long row over threads when there are few rows.
        VLLM_BATCH_INVARIANT=1 runs it row by row.
    Raises: ShapeError if hidden differs or variance_size is out of range.
    Source: Zhang and Sennrich 2019, arXiv:1910.07467.
    """
    return normalise(widen(x), weight, epsilon, variance_size, x.dtype, "rms_norm")


@rms_norm.register_input_generator
def _inputs(
    num_tokens: int = 8,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    epsilon: float = 1e-5,
) -> tuple[Tensor, Tensor, float]:
    x = torch.randn(num_tokens, hidden_size, dtype=dtype, device=device)
    return x, torch.randn(hidden_size, dtype=dtype, device=device), epsilon


# Each kernel sums a row's squares in another order; one ulp of float16 near 1 is 9.8e-4, and a value that is
# rounded before and after the weight may be off by two.
rms_norm.override_tolerance(torch.float16, atol=1e-2, rtol=2e-3)
