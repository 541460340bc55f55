"""Products of 8-bit rows and 8-bit weights, with the scales of both applied to the sums."""

# ruff: noqa: ANN001, ANN201, N803, N806 - Triton has its own types and habits
# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-not-found,attr-defined"

from __future__ import annotations

import triton
import triton.language as tl

from opdock.nn.kernels.triton.dependent import begin
from opdock.nn.kernels.triton.split import finish


@triton.jit
def scaled_linear(
    x_ptr,
    w_ptr,
    x_scale_ptr,
    w_scale_ptr,
    bias_ptr,
    out_ptr,
    parts_ptr,
    locks_ptr,
    rows,
    outputs,
    inputs,
    X_PER_ROW: tl.constexpr,
    W_PER_ROW: tl.constexpr,
    BLOCKED: tl.constexpr,
    INTEGER: tl.constexpr,
    EVEN: tl.constexpr,
    IMPRECISE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
    STAGES: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Compute BLOCK_N outputs of BLOCK_M rows, as out.T = weight @ x.T, over one part of the inputs.

    x is (rows, inputs), w (outputs, inputs), both dense. Scales: one for each row or one in all; BLOCKED: one for
    each 128 inputs of a row of x, and one for each 128 x 128 weights.
    """
    ZERO: tl.constexpr = 0 if INTEGER else 0.0
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    blocks = tl.cdiv(inputs, BLOCK_K)
    each = tl.cdiv(blocks, SPLIT)
    first = tl.program_id(2) * each
    last = tl.minimum(first + each, blocks)
    w_ptrs = w_ptr + n[:, None].to(tl.int64) * inputs + k[None, :]
    x_ptrs = x_ptr + m[None, :].to(tl.int64) * inputs + k[:, None]
    inside = (n < outputs)[:, None]
    used = (m < rows)[None, :]
    scale_blocks = tl.cdiv(inputs, 128)
    line = (tl.minimum(first, blocks - 1) * BLOCK_K + 128 * tl.arange(0, (BLOCK_K + 127) // 128))[None, :]
    begin(w_ptr + n[:, None].to(tl.int64) * inputs + line, DEPENDENT)
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.int32 if INTEGER else tl.float32)
    for c in tl.range(first, last, num_stages=STAGES):
        if EVEN:
            w = tl.load(w_ptrs + c * BLOCK_K, mask=inside, other=ZERO)
            x = tl.load(x_ptrs + c * BLOCK_K, mask=used, other=ZERO)
        else:
            here = c * BLOCK_K + k < inputs
            w = tl.load(w_ptrs + c * BLOCK_K, mask=inside & here[None, :], other=ZERO)
            x = tl.load(x_ptrs + c * BLOCK_K, mask=used & here[:, None], other=ZERO)
        if BLOCKED:
            at = c * BLOCK_K // 128
            ws = tl.load(w_scale_ptr + (n // 128) * scale_blocks + at, mask=n < outputs, other=0.0)
            xs = tl.load(x_scale_ptr + m * scale_blocks + at, mask=m < rows, other=0.0)
            acc += tl.dot(w, x) * (ws[:, None] * xs[None, :])
        elif INTEGER:
            acc = tl.dot(w, x, acc, out_dtype=tl.int32)
        else:
            acc = tl.dot(w, x, acc, max_num_imprecise_acc=IMPRECISE)
    total = acc.to(tl.float32)
    if not BLOCKED:
        if X_PER_ROW:
            total *= tl.load(x_scale_ptr + m, mask=m < rows, other=0.0)[None, :]
        else:
            total *= tl.load(x_scale_ptr)
        if W_PER_ROW:
            total *= tl.load(w_scale_ptr + n, mask=n < outputs, other=0.0)[:, None]
        else:
            total *= tl.load(w_scale_ptr)
    finish(total, bias_ptr, out_ptr, parts_ptr, locks_ptr, m, n, rows, outputs, BLOCK_M, BLOCK_N, SPLIT)
