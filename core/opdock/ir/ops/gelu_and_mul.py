"""The gated activation of Gemma-like models."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from opdock.ir.ops._numerics import halves
from opdock.ir.registering import register_op


@register_op(by_rows=True)
def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    """Multiply the GELU of the first half of x by the second half.

    gate, up = x[..., :d], x[..., d:];  y = gelu(gate) * up, with gelu(g) = g * Phi(g) for ``none`` and
    g / 2 * (1 + tanh(sqrt(2 / pi) * (g + 0.044715 g^3))) for ``tanh``.

    Rounding points: GELU is computed in float32 inside (float64 stays) and rounded to x's dtype; the product is
    rounded to x's dtype, as in silu_and_mul.

    Shapes: x (..., 2 * d); returns (..., d).
    Dtypes: x float16, bfloat16, float32, float64; returns x's dtype.
    Args: approximate, ``none`` or ``tanh``.
    Mutates: nothing.
    Batch: not invariant; on CPUs a single row may take another kernel. VLLM_BATCH_INVARIANT=1 runs it
        row by row.
    Raises: ShapeError if the last dimension is odd; RuntimeError for another approximation.
    Source: Hendrycks and Gimpel 2016, arXiv:1606.08415; Shazeer 2020, arXiv:2002.05202 (GEGLU).
    """
    gate, up = halves(x, "gelu_and_mul")
    return F.gelu(gate, approximate=approximate) * up


@gelu_and_mul.register_input_generator
def _inputs(
    num_tokens: int = 8,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    approximate: str = "tanh",
) -> tuple[Tensor, str]:
    return torch.randn(num_tokens, 2 * hidden_size, dtype=dtype, device=device), approximate
