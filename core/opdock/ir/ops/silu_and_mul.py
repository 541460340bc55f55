"""The gated activation of Llama-like models."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from opdock.ir.ops._numerics import halves
from opdock.ir.registering import register_op


@register_op(by_rows=True)
def silu_and_mul(x: Tensor) -> Tensor:
    """Multiply the SiLU of the first half of x by the second half.

    gate, up = x[..., :d], x[..., d:];  y = gate / (1 + exp(-gate)) * up

    Rounding points: SiLU is computed in float32 inside (float64 stays) and rounded to x's dtype; the product is
    rounded to x's dtype. Models are trained and checked with code that writes ``silu(gate) * up``, which rounds at
    the same two points; a kernel that rounds once is nearer to the formula, and within tolerance.

    Shapes: x (..., 2 * d); returns (..., d).
    Dtypes: x float16, bfloat16, float32, float64; returns x's dtype.
    Mutates: nothing.
    Batch: not invariant; on CPUs the last elements of a thread's share are computed by another exp.
        VLLM_BATCH_INVARIANT=1 runs it row by row.
    Raises: ShapeError if the last dimension is odd.
    Source: Shazeer 2020, arXiv:2002.05202 (SwiGLU).
    """
    gate, up = halves(x, "silu_and_mul")
    return F.silu(gate) * up


@silu_and_mul.register_input_generator
def _inputs(
    num_tokens: int = 8,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> tuple[Tensor]:
    return (torch.randn(num_tokens, 2 * hidden_size, dtype=dtype, device=device),)
