"""Rows times a weight with one division into programs and one order of sums, whatever the number of rows."""

# ruff: noqa: ANN001, ANN201, N803 - Triton has its own types and habits
# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-not-found,attr-defined"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from opdock.nn.kernels.triton import interpreted
from opdock.nn.kernels.triton.launch import launch


class Tile(NamedTuple):
    """The only division for a dtype: rows, outputs and inputs of a step, steps in flight, warps."""

    block_m: int
    block_n: int
    block_k: int
    stages: int
    num_warps: int


NARROW = Tile(64, 64, 64, 4, 4)
"""For bfloat16 and float16."""

WIDE = Tile(32, 64, 32, 3, 4)
"""For float32, whose products take no tensor cores."""


@triton.jit(do_not_specialize=["rows"])
def fixed_linear(
    x_ptr,
    w_ptr,
    bias_ptr,
    out_ptr,
    rows,
    outputs,
    inputs,
    EVEN: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compute BLOCK_N outputs of BLOCK_M rows over all inputs, in order. Grid: (blocks of rows, blocks of outputs).

    x is (rows, inputs), w (outputs, inputs), out (rows, outputs), all dense. Rows that are not there are zeros, so that
    a program is the same however many there are; the number of rows is never a constant of the machine code. Programs
    that share a part of the weight follow each other.
    """
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + m[:, None].to(tl.int64) * inputs + k[None, :]
    w_ptrs = w_ptr + n[None, :].to(tl.int64) * inputs + k[:, None]
    used = (m < rows)[:, None]
    inside = (n < outputs)[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for c in tl.range(0, tl.cdiv(inputs, BLOCK_K), num_stages=STAGES):
        if EVEN:
            x = tl.load(x_ptrs + c * BLOCK_K, mask=used, other=0.0)
            w = tl.load(w_ptrs + c * BLOCK_K, mask=inside, other=0.0)
        else:
            here = c * BLOCK_K + k < inputs
            x = tl.load(x_ptrs + c * BLOCK_K, mask=used & here[None, :], other=0.0)
            w = tl.load(w_ptrs + c * BLOCK_K, mask=inside & here[:, None], other=0.0)
        if WIDEN:
            x, w = x.to(tl.float32), w.to(tl.float32)
        acc = tl.dot(x, w, acc, input_precision="ieee")
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + n, mask=n < outputs, other=0.0).to(tl.float32)[None, :]
    out_ptrs = out_ptr + m[:, None].to(tl.int64) * outputs + n[None, :]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=used & inside)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias, summed in float32; a row's bits depend on no other row.

    Shapes: x (rows, inputs); weight (outputs, inputs); bias (outputs,) or None; returns (rows, outputs).
    Dtypes: float32, bfloat16 or float16, all the same.
    """
    (rows, inputs), outputs = x.shape, weight.shape[0]
    out = x.new_empty(rows, outputs)
    if not rows or not outputs:
        return out
    t = WIDE if x.dtype == torch.float32 else NARROW
    launch(
        fixed_linear,
        (triton.cdiv(rows, t.block_m), triton.cdiv(outputs, t.block_n)),
        ("out_ptr",),
        (_dense(x), _dense(weight), bias, out, rows, outputs, inputs),
        t.num_warps,
        EVEN=inputs % t.block_k == 0,
        WIDEN=interpreted() and x.dtype == torch.bfloat16,  # which the interpreter multiplies as integers
        BLOCK_M=t.block_m,
        BLOCK_N=t.block_n,
        BLOCK_K=t.block_k,
        STAGES=t.stages,
    )
    return out


def _dense(x: Tensor) -> Tensor:
    """Return x with rows that follow each other from a multiple of 16 bytes: other pointers take other machine code."""
    return x if x.is_contiguous() and not x.data_ptr() & 15 else x.clone(memory_format=torch.contiguous_format)
