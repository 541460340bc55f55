"""Gated activations: a function of the first half of a row times the second half."""

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
from opdock.nn.kernels.triton.rows import row_start, scales_like
from opdock.nn.kernels.triton.target import target_of, warps_for

_NONE, _STATIC, _TOKEN = 0, 1, 2
_SILU, _GELU, _GELU_TANH = 0, 1, 2
_COLUMNS = 1024


@triton.jit
def activate(g, ACT: tl.constexpr):
    """Return SiLU (0), GELU (1) or its approximation by tanh (2) of float32 values."""
    if ACT == 0:
        return g / (1.0 + tl.exp(-g))
    elif ACT == 1:  # noqa: RET505 - Triton compiles both branches of what is not an else
        return g * (0.5 * (1.0 + tl.erf(g * 0.7071067811865476)))
    else:
        # (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u))
        return g / (1.0 + tl.exp(-1.5957691216057308 * (g + 0.044715 * g * g * g)))


@triton.jit
def gate_rows(
    x_ptr,
    out_ptr,
    scale_ptr,
    scales_ptr,
    half,
    inner,
    x_outer,
    x_inner,
    out_outer,
    out_inner,
    BLOCK: tl.constexpr,
    ACT: tl.constexpr,
    QUANT: tl.constexpr,
    LIMIT: tl.constexpr,
    LEAST: tl.constexpr,
    MANTISSA: tl.constexpr,
    BIAS: tl.constexpr,
    UNSIGNED_ZERO: tl.constexpr,
    HARD: tl.constexpr,
):
    """Compute BLOCK columns of a row; with a scale for each row, BLOCK is the whole row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < half
    x_ptr += row_start(row, inner, x_outer, x_inner)
    out_ptr += row_start(row, inner, out_outer, out_inner)
    gate = tl.load(x_ptr + columns, mask=inside, other=0.0)
    up = tl.load(x_ptr + half + columns, mask=inside, other=0.0).to(tl.float32)
    activated = activate(gate.to(tl.float32), ACT).to(gate.dtype).to(tl.float32)
    y = (activated * up).to(gate.dtype)
    if QUANT == 0:
        tl.store(out_ptr + columns, y, mask=inside)
    else:
        y = y.to(tl.float32)
        if QUANT == 1:
            scale = tl.load(scale_ptr)
        else:
            scale = token_scale(y, scale_ptr, LIMIT, LEAST)
            tl.store(scales_ptr + row, scale)
        q = to_fp8(y, scale, LIMIT, MANTISSA, BIAS, UNSIGNED_ZERO, HARD)
        tl.store(out_ptr + columns, q, mask=inside)


@triton.jit
def gate_dense(x_ptr, out_ptr, half, BLOCK: tl.constexpr, ACT: tl.constexpr):
    """``gate_rows`` for dense tensors: a launch costs by the parameter."""
    gate_rows(
        x_ptr, out_ptr, None, None, half, None, 2 * half, None, half, None,
        BLOCK, ACT, 0, 0.0, 0.0, 0, 0, False, False,
    )  # fmt: skip


def silu_and_mul(x: Tensor) -> Tensor:
    """Return SiLU of the first half of each row times the second; roundings as in ``ir.ops.silu_and_mul``."""
    return _plain(x, _SILU)


def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    """Return GELU of the first half of each row times the second; ``approximate`` is ``none`` or ``tanh``."""
    return _plain(x, _GELU_TANH if approximate == "tanh" else _GELU)


def silu_and_mul_static_fp8_quant(x: Tensor, scale: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    """Return ``silu_and_mul`` as 8-bit floats with one scale."""
    return _quantised(x, _STATIC, dtype, scale, None)


def silu_and_mul_dynamic_per_token_fp8_quant(
    x: Tensor, scale_ub: Tensor | None = None, dtype: torch.dtype = torch.float8_e4m3fn
) -> tuple[Tensor, Tensor]:
    """Return ``silu_and_mul`` as 8-bit floats, and the scale of each row, (..., 1)."""
    scales = scales_like(x)
    return _quantised(x, _TOKEN, dtype, scale_ub, scales), scales


def _plain(x: Tensor, act: int) -> Tensor:
    half = x.shape[-1] // 2
    if not x.is_contiguous():
        out = torch.empty_like(x[..., :half])
        _launch(("out_ptr",), x, out, None, None, act, _NONE, fp8.NO_FP8)
        return out
    out = torch.empty((*x.shape[:-1], half), dtype=x.dtype, device=x.device)
    count = out.numel()
    if count:
        block = min(triton.next_power_of_2(half), _COLUMNS)
        warps = warps_for(2 * block, target_of(x.get_device()).warp_size)
        grid = (count // half, triton.cdiv(half, block))
        launch(gate_dense, grid, ("out_ptr",), (x, out, half), warps, BLOCK=block, ACT=act)
    return out


def _quantised(x: Tensor, quant: int, dtype: torch.dtype, scale: Tensor | None, scales: Tensor | None) -> Tensor:
    target = target_of(x.get_device())
    out = fp8.allocate((*x.shape[:-1], x.shape[-1] // 2), dtype, x.device, target)
    writes = ("out_ptr", "scales_ptr") if quant == _TOKEN else ("out_ptr",)
    _launch(writes, x, out, scale, scales, _SILU, quant, fp8.constants(dtype, target))
    return fp8.as_fp8(out, dtype)


def _launch(
    writes: tuple[str, ...],
    x: Tensor,
    out: Tensor,
    scale: Tensor | None,
    scales: Tensor | None,
    act: int,
    quant: int,
    constants: dict[str, float | int | bool],
) -> None:
    half = out.shape[-1]
    if not out.numel():
        return
    placed: list[Any]
    if x.is_contiguous() and out.is_contiguous():
        rows, inner, placed = out.numel() // half, None, [2 * half, None, half, None]
    else:
        found = split_rows(x, out)
        if found is None:
            raise ValueError(f"rows of strides {x.stride()} need a copy")
        rows, inner, placed = found[0], found[1], flat(found[2])
    whole = triton.next_power_of_2(half)
    block = whole if quant == _TOKEN else min(whole, _COLUMNS)
    launch(
        gate_rows,
        (rows, triton.cdiv(half, block)),
        writes,
        (x, out, scale, scales, half, inner, *placed),
        num_warps=warps_for(2 * block, target_of(x.get_device()).warp_size),
        BLOCK=block,
        ACT=act,
        QUANT=quant,
        **constants,
    )
