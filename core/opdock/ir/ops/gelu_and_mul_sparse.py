"""The sparse gated activation of Gemma 3n."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from opdock.ir.ops._numerics import halves, widen
from opdock.ir.registering import register_op


@register_op(by_rows=True)
def gelu_and_mul_sparse(x: Tensor, std_multiplier: float, approximate: str = "none") -> Tensor:
    """Multiply the GELU of what stands out in the first half of x by the second half.

    gate, up = x[..., :d], x[..., d:];  t = mean(gate) + std_multiplier * std(gate), over the row;
    y = gelu(max(gate - t, 0)) * up

    Rounding points: mean and (population) standard deviation are computed in float32 (float64 stays) and rounded
    to x's dtype; so is each step after them.

    Shapes: x (..., 2 * d); returns (..., d). The statistics are those of the row that is given.
    Dtypes: x float16, bfloat16, float32, float64; returns x's dtype.
    Args: std_multiplier, in standard deviations; approximate, ``none`` or ``tanh``.
    Mutates: nothing.
    Batch: not invariant; see rms_norm.
    Raises: ShapeError if the last dimension is odd; RuntimeError for another approximation.
    Source: Gemma 3n (activation sparsity by a Gaussian top-k).
    """
    gate, up = halves(x, "gelu_and_mul_sparse")
    wide = widen(gate)
    center = wide.mean(dim=-1, keepdim=True)
    mean, std = center.to(x.dtype), (wide - center).pow(2).mean(dim=-1, keepdim=True).sqrt().to(x.dtype)
    return F.gelu(F.relu(gate - (mean + std * std_multiplier)), approximate=approximate) * up


@gelu_and_mul_sparse.register_input_generator
def _inputs(
    num_tokens: int = 8,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    std_multiplier: float = 1.6448536269514722,
    approximate: str = "tanh",
) -> tuple[Tensor, float, str]:
    x = torch.randn(num_tokens, 2 * hidden_size, dtype=dtype, device=device)
    return x, std_multiplier, approximate
