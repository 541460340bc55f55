"""Gemma's norm in one Triton kernel, on AMD GPUs and in Triton's interpreter."""

# ruff: noqa: ANN001, ANN201, ARG001, N803 - Triton has its own types and habits
# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-not-found,attr-defined"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from opdock.nn.kernels.triton.launch import launch
from opdock.nn.kernels.triton.target import target_of, warps_for


@triton.jit
def gemma_norm(x_ptr, residual_ptr, weight_ptr, out_ptr, sum_ptr, epsilon, hidden, BLOCK: tl.constexpr):
    """Normalise one row of x, or of x + residual, and multiply by 1 + weight, all in float32."""
    start = tl.program_id(0).to(tl.int64) * hidden
    columns = tl.arange(0, BLOCK)
    inside = columns < hidden
    given = tl.load(x_ptr + start + columns, mask=inside, other=0.0)
    x = given.to(tl.float32)
    if residual_ptr is not None:
        x += tl.load(residual_ptr + start + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(sum_ptr + start + columns, x.to(given.dtype), mask=inside)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32) + 1.0
    y = x * tl.rsqrt(tl.sum(x * x, axis=0) / hidden + epsilon) * weight
    tl.store(out_ptr + start + columns, y.to(given.dtype), mask=inside)


def gemma_rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Return x / sqrt(mean(x^2) + epsilon) * (1 + weight) over the last dimension.

    Args:
        x: (..., hidden), dense, with elements.
        weight: (hidden,), dense.
        epsilon: no unit, > 0.
    """
    out = torch.empty_like(x)
    _launch(("out_ptr",), x, None, weight, out, None, epsilon)
    return out


def fused_add_gemma_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return (the norm of x + residual, the sum): new tensors. Shapes as in ``gemma_rms_norm``; residual like x."""
    out, total = torch.empty_like(x), torch.empty_like(x)
    _launch(("out_ptr", "sum_ptr"), x, residual, weight, out, total, epsilon)
    return out, total


@torch.library.custom_op("opdock_rocm_layers::gemma_rms_norm", mutates_args=())
def gemma_op(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """``gemma_rms_norm`` for compiled code, which cannot see into it."""
    return gemma_rms_norm(x, weight, epsilon)


@torch.library.custom_op("opdock_rocm_layers::fused_add_gemma_rms_norm", mutates_args=())
def fused_add_gemma_op(x: Tensor, residual: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """``fused_add_gemma_rms_norm`` for compiled code."""
    return fused_add_gemma_rms_norm(x, residual, weight, epsilon)


@gemma_op.register_fake
def _(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return torch.empty_like(x)


@fused_add_gemma_op.register_fake
def _(x: Tensor, residual: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


def _launch(
    writes: tuple[str, ...],
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    out: Tensor,
    total: Tensor | None,
    epsilon: float,
) -> None:
    hidden = x.shape[-1]
    block = 1 << (hidden - 1).bit_length()
    warps = warps_for(block, target_of(x.get_device()).warp_size)
    args = (x, residual, weight, out, total, epsilon, hidden)
    launch(gemma_norm, (x.numel() // hidden,), writes, args, warps, BLOCK=block)
