"""Quantisation to 8-bit floats, with one scale or one for each row."""

# ruff: noqa: ANN001, ANN201, ARG001, N803 - Triton has its own types and habits
# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-not-found,attr-defined"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from opdock.nn.kernels.triton import fp8
from opdock.nn.kernels.triton.fp8 import to_fp8, token_scale
from opdock.nn.kernels.triton.launch import launch
from opdock.nn.kernels.triton.layout import split_rows
from opdock.nn.kernels.triton.rows import row_start, scales_like
from opdock.nn.kernels.triton.target import target_of, warps_for

_COLUMNS = 2048


@triton.jit
def quantise_block(
    x_ptr,
    out_ptr,
    scale_ptr,
    count,
    hidden,
    inner,
    x_outer,
    x_inner,
    BLOCK: tl.constexpr,
    LIMIT: tl.constexpr,
    LEAST: tl.constexpr,
    MANTISSA: tl.constexpr,
    BIAS: tl.constexpr,
    UNSIGNED_ZERO: tl.constexpr,
    HARD: tl.constexpr,
):
    """Quantise BLOCK elements: of a row of ``hidden``, or of all ``count`` where there is no ``hidden``."""
    first = tl.program_id(0).to(tl.int64)
    if hidden is None:
        columns = first * BLOCK + tl.arange(0, BLOCK)
        inside = columns < count
    else:
        columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = columns < hidden
        x_ptr += row_start(first, inner, x_outer, x_inner)
        out_ptr += first * hidden
    x = tl.load(x_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    q = to_fp8(x, tl.load(scale_ptr), LIMIT, MANTISSA, BIAS, UNSIGNED_ZERO, HARD)
    tl.store(out_ptr + columns, q, mask=inside)


@triton.jit
def quantise_rows(
    x_ptr,
    out_ptr,
    bound_ptr,
    scales_ptr,
    hidden,
    inner,
    x_outer,
    x_inner,
    BLOCK: tl.constexpr,
    LIMIT: tl.constexpr,
    LEAST: tl.constexpr,
    MANTISSA: tl.constexpr,
    BIAS: tl.constexpr,
    UNSIGNED_ZERO: tl.constexpr,
    HARD: tl.constexpr,
):
    """Quantise one row with a scale of its own."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < hidden
    x_ptr += row_start(row, inner, x_outer, x_inner)
    x = tl.load(x_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    scale = token_scale(x, bound_ptr, LIMIT, LEAST)
    tl.store(scales_ptr + row, scale)
    q = to_fp8(x, scale, LIMIT, MANTISSA, BIAS, UNSIGNED_ZERO, HARD)
    tl.store(out_ptr + row * hidden + columns, q, mask=inside)


def static_scaled_fp8_quant(x: Tensor, scale: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    """Return ``x`` over ``scale`` as 8-bit floats; roundings as in ``ir.ops.static_scaled_fp8_quant``."""
    target = target_of(x.get_device())
    out = fp8.allocate(x.shape, dtype, x.device, target)
    count = x.numel()
    if count:
        grid: tuple[int, ...]
        block, grid = _COLUMNS, (triton.cdiv(count, _COLUMNS),)
        placed: tuple[int | None, ...] = (None, None, None, None)
        if not x.is_contiguous():
            rows, *strides = _rows(x)
            hidden = x.shape[-1]
            block = min(triton.next_power_of_2(hidden), _COLUMNS)
            grid, placed = (rows, triton.cdiv(hidden, block)), (hidden, *strides)
        warps = warps_for(block, target.warp_size)
        args = (x, out, scale, count, *placed)
        launch(quantise_block, grid, ("out_ptr",), args, warps, BLOCK=block, **fp8.constants(dtype, target))
    return fp8.as_fp8(out, dtype)


def dynamic_per_token_scaled_fp8_quant(
    x: Tensor, scale_ub: Tensor | None = None, dtype: torch.dtype = torch.float8_e4m3fn
) -> tuple[Tensor, Tensor]:
    """Return each row over a scale of its own, as 8-bit floats, and the scales, (..., 1)."""
    target, hidden = target_of(x.get_device()), x.shape[-1]
    out, scales = fp8.allocate(x.shape, dtype, x.device, target), scales_like(x)
    if out.numel():
        placed = (x.numel() // hidden, None, hidden, None) if x.is_contiguous() else _rows(x)
        block = triton.next_power_of_2(hidden)
        args = (x, out, scale_ub, scales, hidden, *placed[1:])
        warps, writes = warps_for(block, target.warp_size), ("out_ptr", "scales_ptr")
        launch(quantise_rows, placed[:1], writes, args, warps, BLOCK=block, **fp8.constants(dtype, target))
    return fp8.as_fp8(out, dtype), scales


def _rows(x: Tensor) -> tuple[int, int | None, int, int | None]:
    found = split_rows(x)
    if found is None:
        raise ValueError(f"rows of strides {x.stride()} need a copy")
    rows, inner, ((outer_stride, inner_stride),) = found
    return rows, inner, outer_stride, inner_stride
