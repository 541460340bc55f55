"""Grouped matrix products: blocks of rows, each times the matrix of its own expert."""

# ruff: noqa: ANN001, ANN201, C901, N803, SIM108 - Triton has its own types and habits
# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-not-found,attr-defined"

from __future__ import annotations

import triton
import triton.language as tl

from opdock.nn.kernels.triton.gated import activate


@triton.jit
def load_tile(base_ptr, n, k, n_size, k_size, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr):
    """Return a tile of a matrix whose rows lie dense: rows ``n``, columns ``k``; zeros outside."""
    pointers = base_ptr + n[:, None] * k_size + k[None, :]
    if EVEN_N and EVEN_K:
        return tl.load(pointers)
    elif EVEN_K:  # noqa: RET505 - Triton compiles both branches of what is not an else
        return tl.load(pointers, mask=(n < n_size)[:, None], other=0.0)
    else:
        return tl.load(pointers, mask=(n < n_size)[:, None] & (k < k_size)[None, :], other=0.0)


@triton.jit
def multiply(a, b, acc, EXACT: tl.constexpr):
    """Return acc + a @ b.T; float32 operands are not cut to TF32."""
    if EXACT:
        return tl.dot(a, tl.trans(b), acc, input_precision="ieee")
    else:  # noqa: RET505 - Triton compiles both branches of what is not an else
        return tl.dot(a, tl.trans(b), acc)


@triton.jit(do_not_specialize=["blocks", "per_token"])
def grouped_gemm(
    out_ptr,
    a_ptr,
    b_ptr,
    rows_ptr,
    table_ptr,
    weights_ptr,
    a_scale_ptr,
    b_scale_ptr,
    n_size,
    k_size,
    blocks,
    per_token,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
    GATED: tl.constexpr,
    ACT: tl.constexpr,
    GATHER: tl.constexpr,
    SCATTER: tl.constexpr,
    EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr,
    EXACT: tl.constexpr,
    A_TMA: tl.constexpr,
    B_TMA: tl.constexpr,
):
    """Compute BN columns of the outputs of one block of rows.

    B_TMA: b is a descriptor of tiles of (BN, BK) of all experts' rows. A_TMA: a is one of (BM, BK), not gathered. Rows
    of another expert that a tile reaches into are computed and not stored.

    GATED: b holds 2 n_size rows for each expert, and the output is act(a @ gate.T) * (a @ up.T). GATHER: row r of the
    plan reads the token of its place (``per_token`` places each); otherwise a lies in the plan's order. SCATTER: the
    output of row r goes to its place, times the place's weight; otherwise it lies in the plan's order.
    """
    pid = tl.program_id(0)
    columns = tl.cdiv(n_size, BN)
    group = pid // (GROUP * columns)
    height = tl.minimum(blocks - group * GROUP, GROUP)
    block = group * GROUP + pid % (GROUP * columns) % height
    column = pid % (GROUP * columns) // height
    expert = tl.load(table_ptr + block).to(tl.int64)
    lanes = tl.arange(0, BM)
    if rows_ptr is None:
        if expert < 0:
            return
        a_row = block
        row = lanes * 0 + block
        inside = lanes < 1
        place = row
    else:
        count = tl.load(table_ptr + 2 * blocks + block)
        if count <= 0:
            return
        inside = lanes < count
        a_row = tl.load(table_ptr + blocks + block)
        row = tl.where(inside, a_row + lanes, a_row)
        place = tl.load(rows_ptr + row)
    if GATHER:
        source = (place // per_token).to(tl.int64)
    else:
        source = row.to(tl.int64)
    n = column * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    if not A_TMA:
        a_ptr += source[:, None] * k_size
    if not B_TMA:
        if GATED:
            b_ptr += expert * 2 * n_size * k_size
        else:
            b_ptr += expert * n_size * k_size
    if GATED:
        b_row = (expert * 2 * n_size).to(tl.int32) + column * BN
    else:
        b_row = (expert * n_size).to(tl.int32) + column * BN
    acc = tl.zeros((BM, BN), tl.float32)
    up = tl.zeros((BM, BN), tl.float32)
    for begin in range(0, k_size, BK):
        at = begin + k
        if A_TMA:
            a = a_ptr.load([a_row, begin])
        elif EVEN_K:
            a = tl.load(a_ptr + at[None, :])
        else:
            a = tl.load(a_ptr + at[None, :], mask=(at < k_size)[None, :], other=0.0)
        if B_TMA:
            acc = multiply(a, b_ptr.load([b_row, begin]), acc, EXACT)
            if GATED:
                up = multiply(a, b_ptr.load([b_row + n_size, begin]), up, EXACT)
        else:
            acc = multiply(a, load_tile(b_ptr, n, at, n_size, k_size, EVEN_N, EVEN_K), acc, EXACT)
            if GATED:
                tile = load_tile(b_ptr + n_size * k_size, n, at, n_size, k_size, EVEN_N, EVEN_K)
                up = multiply(a, tile, up, EXACT)
    if a_scale_ptr is not None:
        a_scale = tl.load(a_scale_ptr + source)[:, None]
        if GATED:
            b_scale_ptr += expert * 2 * n_size
            up *= a_scale * tl.load(b_scale_ptr + n_size + n, mask=n < n_size, other=0.0)[None, :]
        else:
            b_scale_ptr += expert * n_size
        acc *= a_scale * tl.load(b_scale_ptr + n, mask=n < n_size, other=0.0)[None, :]
    if GATED:
        acc = activate(acc, ACT) * up
    if SCATTER:
        acc *= tl.load(weights_ptr + place)[:, None]
        target = place.to(tl.int64)
    else:
        target = row.to(tl.int64)
    out_ptr += target[:, None] * n_size + n[None, :]
    tl.store(out_ptr, acc.to(out_ptr.dtype.element_ty), mask=inside[:, None] & (n < n_size)[None, :])


@triton.jit(do_not_specialize=["per_token"])
def sum_places(part_ptr, out_ptr, ids_ptr, map_ptr, hidden, per_token, BLOCK: tl.constexpr):
    """Add the places of a token, in their order, in float32; those of no expert here were not written."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < hidden
    total = tl.zeros((BLOCK,), tl.float32)
    for slot in range(per_token):
        place = token * per_token + slot
        expert = tl.load(ids_ptr + place)
        if map_ptr is not None:
            expert = tl.load(map_ptr + expert, mask=expert >= 0, other=-1)
        here = inside & (expert >= 0)
        total += tl.load(part_ptr + place * hidden + columns, mask=here, other=0.0).to(tl.float32)
    tl.store(out_ptr + token * hidden + columns, total.to(out_ptr.dtype.element_ty), mask=inside)
