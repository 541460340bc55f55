"""Residual addition followed by RMS normalisation."""

from __future__ import annotations

import torch
from torch import Tensor

from opdock.ir.ops._numerics import ShapeError, root_mean_square, widen
from opdock.ir.register import register_op


@register_op(activations=["x", "x_residual"], allow_inplace=True)
def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Add the residual to x and normalise each row of the sum by its root mean square.

    s = x + x_residual;  y[i, j] = s[i, j] / sqrt(mean_j(s[i, :variance_size]^2) + epsilon) * weight[j]

    Rounding points: s is summed in float32 (float64 stays) and normalised unrounded; the returned residual is s
    rounded to x's dtype; y as in rms_norm.

    Shapes: x, x_residual (..., hidden); weight (hidden,) or None; returns y and the residual, like x.
    Dtypes: x float16, bfloat16, float32, float64; both results have x's dtype.
    Args: epsilon, added to the mean square, no unit, > 0; variance_size, columns, None means all.
    Mutates: nothing; maybe_inplace may reuse x for y and x_residual for the residual.
    Raises: ShapeError if the shapes of x and x_residual or their hidden sizes differ.
    Source: Zhang and Sennrich 2019, arXiv:1910.07467.
    """
    if x.shape != x_residual.shape:
        raise ShapeError(
            f"fused_add_rms_norm: x {tuple(x.shape)} and x_residual {tuple(x_residual.shape)} differ.",
            remedy="give both the same shape.",
        )
    total = widen(x) + x_residual
    y = root_mean_square(total, weight, epsilon, variance_size)
    if weight is not None:
        y = y.to(weight.dtype) * weight
    return y.to(x.dtype), total.to(x.dtype)


@fused_add_rms_norm.register_input_generator
def _inputs(
    num_tokens: int = 8,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    epsilon: float = 1e-5,
    device: torch.device | str | None = None,
) -> tuple[Tensor, Tensor, Tensor, float]:
    x, residual = (torch.randn(num_tokens, hidden_size, dtype=dtype, device=device) for _ in range(2))
    return x, residual, torch.randn(hidden_size, dtype=dtype, device=device), epsilon


# As for rms_norm.
fused_add_rms_norm.override_tolerance(torch.float16, atol=1e-2, rtol=2e-3)
