"""The end of a product whose inputs several programs share: the last one adds the parts up, in a fixed order."""

# ruff: noqa: ANN001, ANN201, N803 - Triton has its own types and habits
# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-not-found,attr-defined"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def finish(
    acc,
    bias_ptr,
    out_ptr,
    parts_ptr,
    locks_ptr,
    m,
    n,
    rows,
    outputs,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Store acc (BLOCK_N, BLOCK_M), summed over the SPLIT programs of its place, plus the bias, as out (rows, outputs).

    ``parts`` holds SPLIT float32 blocks for each place, ``locks`` an int32 zero for each; they are zero again after it.
    """
    if SPLIT == 1:
        store(acc, bias_ptr, out_ptr, m, n, rows, outputs)
    else:
        place = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        at = tl.arange(0, BLOCK_N)[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
        parts = parts_ptr + place.to(tl.int64) * (SPLIT * BLOCK_N * BLOCK_M) + at
        tl.store(parts + tl.program_id(2) * (BLOCK_N * BLOCK_M), acc)
        tl.debug_barrier()  # all threads have stored before one of them says so
        done = tl.atomic_add(locks_ptr + place, 1, sem="acq_rel")
        if done == SPLIT - 1:
            total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
            for s in tl.static_range(SPLIT):
                total += tl.load(parts + s * (BLOCK_N * BLOCK_M), cache_modifier=".cg")
            store(total, bias_ptr, out_ptr, m, n, rows, outputs)
            tl.store(locks_ptr + place, 0)


@triton.jit
def store(acc, bias_ptr, out_ptr, m, n, rows, outputs):
    """Store acc (n, m) plus the bias as out (m, n)."""
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + n, mask=n < outputs, other=0.0).to(tl.float32)[:, None]
    mask = (n < outputs)[:, None] & (m < rows)[None, :]
    tl.store(out_ptr + m[None, :].to(tl.int64) * outputs + n[:, None], acc.to(out_ptr.dtype.element_ty), mask=mask)
