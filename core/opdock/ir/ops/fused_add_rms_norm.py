"""Residual addition followed by RMS normalisation."""

from __future__ import annotations

import torch
from torch import Tensor

from opdock.ir.ops._numerics import ShapeError, normalise, widen
from opdock.ir.registering import register_op


@register_op(activations=["x", "x_residual"], allow_inplace=True, by_rows=True)
def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Add the residual to x and normalise each row of the sum by its root mean square.

    s = x + x_residual;  y[i, j] = s[i, j] / sqrt(mean_j(s[i, :variance_size]^2) + epsilon) * weight[j]

    Rounding points: s is summed in float32 (float64 stays) and normalised unrounded; the returned residual is s
    rounded to x's dtype, whatever x_residual's; y is rounded as in rms_norm.

    Shapes: x, x_residual (..., hidden); weight (hidden,) or None; returns y and the residual, like x.
    Dtypes: x, x_residual float16, bfloat16, float32, float64; weight any of them; both results have x's dtype.
    Args: epsilon, added to the mean square, no unit, > 0; variance_size, columns whose mean square counts, None
        means all.
    Mutates: nothing; maybe_inplace may reuse x for y and x_residual for the residual.
    Batch: not invariant; see rms_norm.
    Raises: ShapeError if the shapes of x and x_residual or the hidden sizes differ.
    Source: Zhang and Sennrich 2019, arXiv:1910.07467.
    """
    if x.shape != x_residual.shape:
        raise ShapeError(
            f"fused_add_rms_norm: x {tuple(x.shape)} and x_residual {tuple(x_residual.shape)} differ.",
            remedy="give both the same shape.",
        )
    total = widen(x) + widen(x_residual)
    return normalise(total, weight, epsilon, variance_size, x.dtype, "fused_add_rms_norm"), total.to(x.dtype)


@fused_add_rms_norm.register_input_generator
def _inputs(
    num_tokens: int = 8,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    epsilon: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor, float]:
    x = torch.randn(num_tokens, hidden_size, dtype=dtype, device=device)
    return x, torch.randn_like(x), torch.randn(hidden_size, dtype=dtype, device=device), epsilon


# As for rms_norm; and a kernel may round the sum before it takes the variance.
fused_add_rms_norm.override_tolerance(torch.float16, atol=1e-2, rtol=2e-3)
