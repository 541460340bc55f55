"""Products with 4-bit weights that are unpacked in registers: for as many rows as a decoding step has."""

# ruff: noqa: ANN001, ANN201, ANN202, N803, N806 - Triton has its own types and habits
# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-not-found,attr-defined"

from __future__ import annotations

import triton
import triton.language as tl

from opdock.nn.kernels.triton.dependent import begin
from opdock.nn.kernels.triton.split import finish


@triton.jit
def unpack(words, DTYPE: tl.constexpr, FAST: tl.constexpr):
    """Return the four codes of each 16-bit word, minus 8, as DTYPE.

    FAST, for NVIDIA, converts no integer: a code in the lowest bits of a float of unit steps (128 in bfloat16, 1024
    in float16) is that float plus the code, exactly.
    """
    if FAST and tl.bfloat16 == DTYPE:  # two words at a time
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b32 a, b, c, one, less;
            mov.b32 one, 0x3F803F80;
            mov.b32 less, 0xC308C308;
            shr.u32 a, $4, 4;
            shr.u32 b, $4, 8;
            shr.u32 c, $4, 12;
            lop3.b32 $0, $4, 0x000F000F, 0x43004300, 0xEA;
            lop3.b32 $1, a, 0x000F000F, 0x43004300, 0xEA;
            lop3.b32 $2, b, 0x000F000F, 0x43004300, 0xEA;
            lop3.b32 $3, c, 0x000F000F, 0x43004300, 0xEA;
            fma.rn.bf16x2 $0, $0, one, less;
            fma.rn.bf16x2 $1, $1, one, less;
            fma.rn.bf16x2 $2, $2, one, less;
            fma.rn.bf16x2 $3, $3, one, less;
            }
            """,
            "=&r,=&r,=&r,=&r,r",
            [words],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    elif FAST:  # noqa: RET505 - Triton compiles both branches of what is not an else
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b32 a, b, c, less;
            mov.b32 less, 0xE408E408;
            shr.u32 a, $4, 4;
            shr.u32 b, $4, 8;
            shr.u32 c, $4, 12;
            lop3.b32 $0, $4, 0x000F000F, 0x64006400, 0xEA;
            lop3.b32 $1, a, 0x000F000F, 0x64006400, 0xEA;
            lop3.b32 $2, b, 0x000F000F, 0x64006400, 0xEA;
            lop3.b32 $3, c, 0x000F000F, 0x64006400, 0xEA;
            add.rn.f16x2 $0, $0, less;
            add.rn.f16x2 $1, $1, less;
            add.rn.f16x2 $2, $2, less;
            add.rn.f16x2 $3, $3, less;
            }
            """,
            "=&r,=&r,=&r,=&r,r",
            [words],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )
    else:
        w0 = ((words & 0xF) - 8).to(DTYPE)
        w1 = (((words >> 4) & 0xF) - 8).to(DTYPE)
        w2 = (((words >> 8) & 0xF) - 8).to(DTYPE)
        w3 = (((words >> 12) & 0xF) - 8).to(DTYPE)
        return w0, w1, w2, w3


@triton.jit
def _group(scales_ptr, shifts_ptr, g, n, outputs, EVEN: tl.constexpr):
    """Return scale and shift of BLOCK_N outputs in group g, float32."""
    at = g * outputs + n
    scale = tl.load(scales_ptr + at) if EVEN else tl.load(scales_ptr + at, mask=n < outputs, other=0.0)
    scale = scale.to(tl.float32)
    shift = scale
    if shifts_ptr is not None:
        shift = tl.load(shifts_ptr + at, mask=n < outputs, other=0.0).to(tl.float32)
    return scale, shift


@triton.jit
def _add(acc, d, x, scale, shift, SHIFTED: tl.constexpr):
    """Add one group: d * scale, and for weights with zero points their shift times the sum of x."""
    acc += d * scale[:, None]
    if SHIFTED:
        acc += shift[:, None] * tl.sum(x.to(tl.float32), axis=0)[None, :]
    return acc


@triton.jit
def int4_linear(
    x_ptr,
    w_ptr,
    scales_ptr,
    shifts_ptr,
    bias_ptr,
    out_ptr,
    parts_ptr,
    locks_ptr,
    rows,
    outputs,
    inputs,
    x_stride,
    group,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WORDS: tl.constexpr,
    STEP: tl.constexpr,
    OWN_SCALES: tl.constexpr,
    FAST: tl.constexpr,
    EVEN: tl.constexpr,
    SPLIT: tl.constexpr,
    STAGES: tl.constexpr,
    ALIGN: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Compute BLOCK_N outputs of BLOCK_M rows, as out.T = weight @ x.T, over one part of the inputs.

    w is (outputs, inputs / 4) 16-bit words. A word holds the codes of inputs that lie WORDS apart, so that one mask
    and one shift give a dense block of weights; STEP of WORDS are taken at a time. OWN_SCALES: each of the four has a
    group of its own; otherwise all four lie in one group. EVEN: BLOCK_N divides the outputs. ALIGN, 4 or 16: of how
    many words the compiler takes a row to be a multiple, and so how many bytes are copied at once. scales and shifts,
    (groups, outputs): a weight is (code - 8) * scale + shift.
    """
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    j = tl.arange(0, STEP)
    IN_CHUNK: tl.constexpr = WORDS // STEP
    steps = inputs // (4 * STEP)
    each = tl.cdiv(steps, SPLIT)
    first = tl.program_id(2) * each
    last = tl.minimum(first + each, steps)
    w_ptrs = w_ptr + n[:, None].to(tl.int64) * tl.multiple_of(inputs // 4, ALIGN) + j[None, :]
    x_ptrs = x_ptr + m[None, :].to(tl.int64) * x_stride + j[:, None]
    inside = n < outputs
    used = (m < rows)[None, :]
    SHIFTED: tl.constexpr = shifts_ptr is not None
    each_group = 1 if OWN_SCALES else group // (4 * WORDS)  # chunks of one group
    start = tl.minimum(first, steps - 1)
    line = (start * STEP + 64 * tl.arange(0, (STEP + 63) // 64))[None, :]
    begin(w_ptr + n[:, None].to(tl.int64) * (inputs // 4) + line, DEPENDENT)
    # Scales are loaded one step ahead: a load that a product waits for would take longer than the product.
    g = start // IN_CHUNK * 4 if OWN_SCALES else start // IN_CHUNK // each_group
    s0, h0 = _group(scales_ptr, shifts_ptr, g, n, outputs, EVEN)
    s1, h1, s2, h2, s3, h3 = s0, h0, s0, h0, s0, h0
    if OWN_SCALES:
        s1, h1 = _group(scales_ptr, shifts_ptr, g + 1, n, outputs, EVEN)
        s2, h2 = _group(scales_ptr, shifts_ptr, g + 2, n, outputs, EVEN)
        s3, h3 = _group(scales_ptr, shifts_ptr, g + 3, n, outputs, EVEN)
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for c in tl.range(first, last, num_stages=STAGES):
        words = tl.load(w_ptrs + c * STEP) if EVEN else tl.load(w_ptrs + c * STEP, mask=inside[:, None], other=0)
        x_at = x_ptrs + (c // IN_CHUNK * (4 * WORDS) + c % IN_CHUNK * STEP)
        x0 = tl.load(x_at, mask=used, other=0.0)
        x1 = tl.load(x_at + WORDS, mask=used, other=0.0)
        x2 = tl.load(x_at + 2 * WORDS, mask=used, other=0.0)
        x3 = tl.load(x_at + 3 * WORDS, mask=used, other=0.0)
        ahead = tl.minimum(c + 1, last - 1)
        g = ahead // IN_CHUNK * 4 if OWN_SCALES else ahead // IN_CHUNK // each_group
        n0, k0 = _group(scales_ptr, shifts_ptr, g, n, outputs, EVEN)
        w0, w1, w2, w3 = unpack(words, DTYPE, FAST)
        if OWN_SCALES:
            n1, k1 = _group(scales_ptr, shifts_ptr, g + 1, n, outputs, EVEN)
            n2, k2 = _group(scales_ptr, shifts_ptr, g + 2, n, outputs, EVEN)
            n3, k3 = _group(scales_ptr, shifts_ptr, g + 3, n, outputs, EVEN)
            acc = _add(acc, tl.dot(w0, x0), x0, s0, h0, SHIFTED)
            acc = _add(acc, tl.dot(w1, x1), x1, s1, h1, SHIFTED)
            acc = _add(acc, tl.dot(w2, x2), x2, s2, h2, SHIFTED)
            acc = _add(acc, tl.dot(w3, x3), x3, s3, h3, SHIFTED)
            s1, h1, s2, h2, s3, h3 = n1, k1, n2, k2, n3, k3
        else:
            d = tl.dot(w3, x3, tl.dot(w2, x2, tl.dot(w1, x1, tl.dot(w0, x0))))
            x = x0
            if SHIFTED:
                x = x0.to(tl.float32) + x1.to(tl.float32) + x2.to(tl.float32) + x3.to(tl.float32)
            acc = _add(acc, d, x, s0, h0, SHIFTED)
        s0, h0 = n0, k0
    finish(acc, bias_ptr, out_ptr, parts_ptr, locks_ptr, m, n, rows, outputs, BLOCK_M, BLOCK_N, SPLIT)
