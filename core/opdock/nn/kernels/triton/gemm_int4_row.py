"""One row times 4-bit weights: no product unit, every weight is read, unpacked and added up in registers."""

# ruff: noqa: ANN001, ANN201, ANN202, N803 - Triton has its own types and habits
# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-not-found,attr-defined"

from __future__ import annotations

import triton
import triton.language as tl

from opdock.nn.kernels.triton.dependent import begin


@triton.jit
def _floats(words, FAST: tl.constexpr):
    """Return the four codes of each 16-bit word, minus 8, as float32.

    FAST, for NVIDIA: a code that lies at bit p of a float's mantissa, with the exponent for which bit p is one, is
    2 ** (23 - p) plus the code. Five places of two words can stay where they are, three are moved.
    """
    if FAST:
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b32 high;
            shr.u32 high, $8, 12;
            lop3.b32 $0, $8, 0x0000000F, 0x4B000000, 0xEA;
            lop3.b32 $2, $8, 0x000000F0, 0x49000000, 0xEA;
            lop3.b32 $4, $8, 0x00000F00, 0x47000000, 0xEA;
            lop3.b32 $6, $8, 0x0000F000, 0x45000000, 0xEA;
            lop3.b32 $1, $8, 0x000F0000, 0x43000000, 0xEA;
            lop3.b32 $3, high, 0x00000F00, 0x47000000, 0xEA;
            lop3.b32 $5, high, 0x0000F000, 0x45000000, 0xEA;
            lop3.b32 $7, high, 0x000F0000, 0x43000000, 0xEA;
            sub.rn.f32 $0, $0, 0f4B000008;
            sub.rn.f32 $2, $2, 0f49000080;
            sub.rn.f32 $4, $4, 0f47000800;
            sub.rn.f32 $6, $6, 0f45008000;
            sub.rn.f32 $1, $1, 0f43080000;
            sub.rn.f32 $3, $3, 0f47000800;
            sub.rn.f32 $5, $5, 0f45008000;
            sub.rn.f32 $7, $7, 0f43080000;
            }
            """,
            "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r",
            [words],
            dtype=(tl.float32, tl.float32, tl.float32, tl.float32),
            is_pure=True,
            pack=2,
        )
    else:  # noqa: RET505 - Triton compiles both branches of what is not an else
        w0 = ((words & 0xF) - 8).to(tl.float32)
        w1 = (((words >> 4) & 0xF) - 8).to(tl.float32)
        w2 = (((words >> 8) & 0xF) - 8).to(tl.float32)
        w3 = (((words >> 12) & 0xF) - 8).to(tl.float32)
        return w0, w1, w2, w3


@triton.jit
def _part(w, x_ptrs, scales_ptr, shifts_ptr, at, inside, there, CHUNKS: tl.constexpr, WORDS: tl.constexpr):
    """Return the sums of eight weights times x, scaled, as (outputs, chunks, lanes); w and x lie along one line."""
    x = tl.load(x_ptrs, mask=there, other=0.0).to(tl.float32)
    part = tl.sum(tl.reshape(w * x, (w.shape[0], CHUNKS, WORDS // 8, 8)), axis=3)
    part *= tl.load(scales_ptr + at, mask=inside, other=0.0).to(tl.float32)[:, :, None]
    if shifts_ptr is not None:
        shift = tl.load(shifts_ptr + at, mask=inside, other=0.0).to(tl.float32)
        part += shift[:, :, None] * tl.sum(tl.reshape(x, (1, CHUNKS, WORDS // 8, 8)), axis=3)
    return part


@triton.jit
def _step(
    x_ptr,
    w_ptrs,
    scales_ptr,
    shifts_ptr,
    n,
    chunks,
    outputs,
    STEP: tl.constexpr,
    CHUNKS: tl.constexpr,
    WORDS: tl.constexpr,
    FAST: tl.constexpr,
):
    """Return the sums of one step, (outputs, chunks, lanes)."""
    k = tl.arange(0, CHUNKS * WORDS)[None, :]  # words of the step
    there = STEP * CHUNKS + k // WORDS < chunks
    words = tl.load(w_ptrs + STEP * CHUNKS * WORDS, mask=(n < outputs)[:, None] & there, other=0)
    w0, w1, w2, w3 = _floats(words, FAST)
    x_at = x_ptr + STEP * CHUNKS * 4 * WORDS + (k // WORDS * (4 * WORDS) + k % WORDS)
    c = STEP * CHUNKS + tl.arange(0, CHUNKS)
    inside = (n < outputs)[:, None] & (c < chunks)[None, :]
    at = (c * 4)[None, :] * outputs + n[:, None]
    acc = _part(w0, x_at, scales_ptr, shifts_ptr, at, inside, there, CHUNKS, WORDS)
    acc += _part(w1, x_at + WORDS, scales_ptr, shifts_ptr, at + outputs, inside, there, CHUNKS, WORDS)
    acc += _part(w2, x_at + 2 * WORDS, scales_ptr, shifts_ptr, at + 2 * outputs, inside, there, CHUNKS, WORDS)
    return acc + _part(w3, x_at + 3 * WORDS, scales_ptr, shifts_ptr, at + 3 * outputs, inside, there, CHUNKS, WORDS)


@triton.jit
def int4_row(
    x_ptr,
    w_ptr,
    scales_ptr,
    shifts_ptr,
    bias_ptr,
    out_ptr,
    outputs,
    inputs,
    BLOCK_N: tl.constexpr,
    CHUNKS: tl.constexpr,
    STEPS: tl.constexpr,
    WORDS: tl.constexpr,
    FAST: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Compute BLOCK_N outputs of one row, in STEPS steps of CHUNKS times four groups of WORDS inputs.

    Weights, scales and shifts are ``int4_linear``'s, where each code of a word has a group of its own.
    """
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    chunks = inputs // (4 * WORDS)
    stride = tl.multiple_of(inputs // 4, 16)  # 64 inputs at least share their words
    w_ptrs = w_ptr + n[:, None].to(tl.int64) * stride + tl.arange(0, CHUNKS * WORDS)[None, :]
    line = 64 * tl.arange(0, (CHUNKS * WORDS + 63) // 64)[None, :]
    begin(w_ptr + n[:, None].to(tl.int64) * stride + line, DEPENDENT)
    # Written out, and begun with a sum: what a loop carries would have another layout, and go through memory.
    acc = _step(x_ptr, w_ptrs, scales_ptr, shifts_ptr, n, chunks, outputs, 0, CHUNKS, WORDS, FAST)
    for step in tl.static_range(1, STEPS):
        acc += _step(x_ptr, w_ptrs, scales_ptr, shifts_ptr, n, chunks, outputs, step, CHUNKS, WORDS, FAST)
    total = tl.sum(tl.reshape(acc, (BLOCK_N, CHUNKS * (WORDS // 8))), axis=1)
    if bias_ptr is not None:
        total += tl.load(bias_ptr + n, mask=n < outputs, other=0.0).to(tl.float32)
    tl.store(out_ptr + n, total.to(out_ptr.dtype.element_ty), mask=n < outputs)
