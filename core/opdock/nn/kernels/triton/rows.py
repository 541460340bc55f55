"""RMS normalisation of rows, with a residual or without, to the input's dtype or to 8-bit floats."""

# ruff: noqa: ANN001, ANN201, N803 - Triton has its own types and habits
# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-not-found,attr-defined"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from opdock.nn.kernels.triton import fp8
from opdock.nn.kernels.triton.fp8 import to_fp8, token_scale
from opdock.nn.kernels.triton.launch import launch
from opdock.nn.kernels.triton.layout import flat, split_rows
from opdock.nn.kernels.triton.target import target_of, warps_for

_NONE, _STATIC, _TOKEN = 0, 1, 2


@triton.jit
def row_start(row, inner, outer_stride, inner_stride):
    """Return how many elements a row begins behind a tensor's first element."""
    if inner is None:
        return row * outer_stride
    else:  # noqa: RET505 - Triton compiles both branches of what is not an else
        return (row // inner) * outer_stride + (row % inner) * inner_stride


@triton.jit
def norm_rows(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    sum_ptr,
    scale_ptr,
    scales_ptr,
    epsilon,
    hidden,
    counted,
    inner,
    x_outer,
    x_inner,
    out_outer,
    out_inner,
    residual_outer,
    residual_inner,
    sum_outer,
    sum_inner,
    BLOCK: tl.constexpr,
    QUANT: tl.constexpr,
    LIMIT: tl.constexpr,
    LEAST: tl.constexpr,
    MANTISSA: tl.constexpr,
    BIAS: tl.constexpr,
    UNSIGNED_ZERO: tl.constexpr,
    HARD: tl.constexpr,
):
    """Normalise one row. Without ``out_ptr`` it writes y to x, without ``sum_ptr`` the sum to the residual."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < hidden
    x_ptr += row_start(row, inner, x_outer, x_inner)
    given = tl.load(x_ptr + columns, mask=inside, other=0.0)
    x = given.to(tl.float32)
    if residual_ptr is not None:
        residual_ptr += row_start(row, inner, residual_outer, residual_inner)
        x += tl.load(residual_ptr + columns, mask=inside, other=0.0).to(tl.float32)
        if sum_ptr is None:
            tl.store(residual_ptr + columns, x.to(given.dtype), mask=inside)
        else:
            sum_ptr += row_start(row, inner, sum_outer, sum_inner)
            tl.store(sum_ptr + columns, x.to(given.dtype), mask=inside)
    if counted is None:
        square, count = tl.sum(x * x, axis=0), hidden
    else:
        square, count = tl.sum(tl.where(columns < counted, x * x, 0.0), axis=0), counted
    y = x * tl.rsqrt(square / count + epsilon)
    if weight_ptr is not None:
        weight = tl.load(weight_ptr + columns, mask=inside, other=0.0)
        y = y.to(weight.dtype).to(tl.float32) * weight.to(tl.float32)
        y = y.to(weight.dtype).to(tl.float32)
    y = y.to(given.dtype)
    if QUANT == 0:
        if out_ptr is None:
            tl.store(x_ptr + columns, y, mask=inside)
        else:
            out_ptr += row_start(row, inner, out_outer, out_inner)
            tl.store(out_ptr + columns, y, mask=inside)
    else:
        y = tl.where(inside, y.to(tl.float32), 0.0)
        if QUANT == 1:
            scale = tl.load(scale_ptr)
        else:
            scale = token_scale(y, scale_ptr, LIMIT, LEAST)
            tl.store(scales_ptr + row, scale)
        out_ptr += row_start(row, inner, out_outer, out_inner)
        q = to_fp8(y, scale, LIMIT, MANTISSA, BIAS, UNSIGNED_ZERO, HARD)
        tl.store(out_ptr + columns, q, mask=inside)


@triton.jit
def norm_dense(x_ptr, residual_ptr, weight_ptr, out_ptr, epsilon, hidden, BLOCK: tl.constexpr):
    """``norm_rows`` for dense tensors: a launch costs by the parameter."""
    norm_rows(
        x_ptr, residual_ptr, weight_ptr, out_ptr, None, None, None, epsilon, hidden, None, None,
        hidden, None, hidden, None, hidden, None, None, None, BLOCK, 0, 0.0, 0.0, 0, 0, False, False,
    )  # fmt: skip


def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    """Return the RMS norm of each row; shapes, dtypes and roundings as in ``ir.ops.rms_norm``."""
    out = torch.empty_like(x)
    if variance_size is None and x.is_contiguous():
        _launch_dense(("out_ptr",), x, None, weight, out, epsilon)
    else:
        _launch(("out_ptr",), x, None, weight, out, None, epsilon, variance_size)
    return out


def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Write the sum to ``x_residual`` and its norm to ``x``, and return ``x`` and ``x_residual``."""
    if variance_size is None and x.is_contiguous() and x_residual.is_contiguous():
        _launch_dense(("x_ptr", "residual_ptr"), x, x_residual, weight, None, epsilon)
    else:
        _launch(("x_ptr", "residual_ptr"), x, x_residual, weight, None, None, epsilon, variance_size)
    return x, x_residual


def rms_norm_static_fp8_quant(
    x: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: torch.dtype = torch.float8_e4m3fn
) -> Tensor:
    """Return the norm of each row as 8-bit floats with one scale."""
    out = _bytes_like(x, dtype)
    _launch(("out_ptr",), x, None, weight, out, None, epsilon, None, _STATIC, dtype, scale)
    return fp8.as_fp8(out, dtype)


def rms_norm_dynamic_per_token_fp8_quant(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    scale_ub: Tensor | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor]:
    """Return the norm of each row as 8-bit floats, and the scale of each row, (..., 1)."""
    out, scales = _bytes_like(x, dtype), scales_like(x)
    writes = ("out_ptr", "scales_ptr")
    _launch(writes, x, None, weight, out, None, epsilon, None, _TOKEN, dtype, scale_ub, scales)
    return fp8.as_fp8(out, dtype), scales


def fused_add_rms_norm_static_fp8_quant(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    scale: Tensor,
    epsilon: float,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor]:
    """Return the norm of the sum as 8-bit floats with one scale, and the sum, in ``x``'s dtype."""
    out, total = _bytes_like(x, dtype), torch.empty_like(x)
    _launch(("out_ptr", "sum_ptr"), x, x_residual, weight, out, total, epsilon, None, _STATIC, dtype, scale)
    return fp8.as_fp8(out, dtype), total


def fused_add_rms_norm_dynamic_per_token_fp8_quant(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    scale_ub: Tensor | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the norm of the sum as 8-bit floats, the scale of each row, (..., 1), and the sum."""
    out, total, scales = _bytes_like(x, dtype), torch.empty_like(x), scales_like(x)
    writes = ("out_ptr", "sum_ptr", "scales_ptr")
    _launch(writes, x, x_residual, weight, out, total, epsilon, None, _TOKEN, dtype, scale_ub, scales)
    return fp8.as_fp8(out, dtype), scales, total


def _bytes_like(x: Tensor, dtype: torch.dtype) -> Tensor:
    return fp8.allocate(x.shape, dtype, x.device, target_of(x.get_device()))


def scales_like(x: Tensor) -> Tensor:
    """Return memory for a float32 scale of each row."""
    return torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)


def _launch_dense(
    writes: tuple[str, ...],
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    out: Tensor | None,
    epsilon: float,
) -> None:
    hidden, count = x.shape[-1], x.numel()
    if count:
        block = triton.next_power_of_2(hidden)
        warps = warps_for(block, target_of(x.get_device()).warp_size)
        args = (x, residual, weight, out, epsilon, hidden)
        launch(norm_dense, (count // hidden,), writes, args, warps, BLOCK=block)


def _launch(
    writes: tuple[str, ...],
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    out: Tensor | None,
    total: Tensor | None,
    epsilon: float,
    counted: int | None,
    quant: int = _NONE,
    dtype: torch.dtype | None = None,
    scale: Tensor | None = None,
    scales: Tensor | None = None,
) -> None:
    hidden = x.shape[-1]
    if not x.numel():
        return
    tensors = [t for t in (x, out, residual, total) if t is not None]
    if all(t.is_contiguous() for t in tensors):
        rows, inner = x.numel() // hidden, None
        strides: list[Any] = [hidden, None] * len(tensors)
    else:
        found = split_rows(*tensors)
        if found is None:
            raise ValueError(f"rows of strides {[t.stride() for t in tensors]} need a copy")
        rows, inner, strides = found[0], found[1], flat(found[2])
    where = iter(strides)
    placed = [
        v for t in (x, out, residual, total) for v in ((next(where), next(where)) if t is not None else (None,) * 2)
    ]
    target, block = target_of(x.get_device()), triton.next_power_of_2(hidden)
    launch(
        norm_rows,
        (rows,),
        writes,
        (x, residual, weight, out, total, scale, scales, epsilon, hidden, counted, inner, *placed),
        num_warps=warps_for(block, target.warp_size),
        BLOCK=block,
        QUANT=quant,
        **(fp8.NO_FP8 if dtype is None else fp8.constants(dtype, target)),
    )
