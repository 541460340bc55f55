"""Attention over a paged cache: prompts, parts of prompts, single tokens, and batches of all of these.

Rows of a block are tokens times the query heads that share a key head, so that keys are read once for all of them.
"""

# ruff: noqa: ANN001, ANN201, N803, C901, SIM102, SIM108 - Triton has its own types and habits, and one kernel is one function
# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-not-found,attr-defined,no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from opdock.nn.kernels.triton.dependent import wait_ahead

# Numbers that differ from step to step are not specialised: each new kind of them would compile for a second or two.
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def find_request(starts_ptr, requests, block, BLOCK_Q: tl.constexpr):
    """Return the request that a block of queries belongs to; each request begins a block of its own."""
    low = 0
    high = requests
    while low < high:
        middle = (low + high) // 2
        if tl.load(starts_ptr + middle) // BLOCK_Q + middle <= block:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def read_tile(
    cache_ptr, table_ptr, head_offset, start, positions, end, block_stride, slot_stride, columns,
    HEAD: tl.constexpr, HEAD_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Return keys or values (TILE, HEAD_PAD) of positions; zeros from ``end`` on, where MASKED."""
    if BLOCK_SIZE % TILE == 0:  # a tile begins at a multiple of TILE and lies in one block
        block = tl.load(table_ptr + start // BLOCK_SIZE).to(tl.int64)
        slots = start % BLOCK_SIZE + tl.arange(0, TILE)
        at = block * block_stride + head_offset
        pointers = cache_ptr + at + slots[:, None] * slot_stride + columns[None, :]
    else:
        if MASKED:
            block = tl.load(table_ptr + positions // BLOCK_SIZE, mask=positions < end, other=0).to(tl.int64)
        else:
            block = tl.load(table_ptr + positions // BLOCK_SIZE).to(tl.int64)
        at = block * block_stride + (positions % BLOCK_SIZE) * slot_stride + head_offset
        pointers = cache_ptr + at[:, None] + columns[None, :]
    if MASKED:
        if HEAD == HEAD_PAD:
            return tl.load(pointers, mask=(positions < end)[:, None], other=0.0)
        else:  # noqa: RET505 - Triton compiles both branches of what is not an else
            return tl.load(pointers, mask=(positions < end)[:, None] & (columns < HEAD)[None, :], other=0.0)
    elif HEAD == HEAD_PAD:
        return tl.load(pointers)
    else:
        return tl.load(pointers, mask=(columns < HEAD)[None, :], other=0.0)


@triton.jit
def attend_tiles(
    acc, top, total, q, low, high, end, query_positions, key_ptr, value_ptr, table_ptr, key_head, value_head,
    key_block_stride, key_slot_stride, value_block_stride, value_slot_stride, columns, scale, soft_cap, slopes,
    HEAD: tl.constexpr, HEAD_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
    WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, ALIBI: tl.constexpr, MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Go on over the tiles of ``low`` to ``high``; scores are in units of log2."""
    for start in range(low, high, TILE):
        positions = start + tl.arange(0, TILE)
        k = read_tile(
            key_ptr, table_ptr, key_head, start, positions, end, key_block_stride, key_slot_stride, columns,
            HEAD, HEAD_PAD, BLOCK_SIZE, TILE, MASKED,
        ).to(q.dtype)  # fmt: skip
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if SOFT_CAP:
            bent = scores * (scale / soft_cap)
            scores = (soft_cap * LOG2E) * (2.0 / (1.0 + tl.exp2(bent * (-2.0 * LOG2E))) - 1.0)
        else:
            scores = scores * (scale * LOG2E)
        if ALIBI:
            away = (positions[None, :] - query_positions[:, None]).to(tl.float32)
            scores += slopes[:, None] * away
        if MASKED:
            seen = positions[None, :] <= query_positions[:, None]
            if WINDOW > 0:
                seen = seen & (query_positions[:, None] - positions[None, :] < WINDOW)
            scores = tl.where(seen, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        if MASKED:  # a row that has seen nothing yet stays at 0, not NaN
            base = tl.where(new_top == float("-inf"), 0.0, new_top)
        else:
            base = new_top
        p = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None]
        v = read_tile(
            value_ptr, table_ptr, value_head, start, positions, end, value_block_stride, value_slot_stride, columns,
            HEAD, HEAD_PAD, BLOCK_SIZE, TILE, MASKED,
        ).to(q.dtype)  # fmt: skip
        acc = tl.dot(p.to(q.dtype), v, acc, input_precision=PRECISION)
        top = new_top
    return acc, top, total


@triton.jit
def merge_splits(
    out_ptr, partial_ptr, lse_ptr, splits, active, first_row, head, heads_end, out_at, out_head_stride,
    GROUP_PAD: tl.constexpr, HEAD: tl.constexpr, HEAD_PAD: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Merge the parts of some heads of one token, in the order of the splits, and store the sums.

    CHUNK parts at a time: each step waits for memory once.
    """
    heads = head + tl.arange(0, GROUP_PAD)
    inside = heads < heads_end
    columns = tl.arange(0, HEAD_PAD)
    top = tl.full((GROUP_PAD,), float("-inf"), tl.float32)
    total = tl.zeros((GROUP_PAD,), tl.float32)
    acc = tl.zeros((GROUP_PAD, HEAD_PAD), tl.float32)
    for chunk in range(0, active, CHUNK):
        split = chunk + tl.arange(0, CHUNK)
        at = (first_row + heads)[:, None] * splits + split[None, :]
        there = inside[:, None] & (split < active)[None, :]
        lse = tl.load(lse_ptr + at, mask=there, other=float("-inf"))
        parts = tl.load(
            partial_ptr + at.to(tl.int64)[:, :, None] * HEAD_PAD + columns[None, None, :],
            mask=there[:, :, None],
            other=0.0,
        )
        new_top = tl.maximum(top, tl.max(lse, 1))
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        shrink, weights = tl.exp2(top - base), tl.exp2(lse - base[:, None])
        acc = acc * shrink[:, None] + tl.sum(parts * weights[:, :, None], 1)
        total = total * shrink + tl.sum(weights, 1)
        top = new_top
    acc = acc / tl.where(total > 0.0, total, 1.0)[:, None]
    pointers = out_ptr + out_at + heads.to(tl.int64)[:, None] * out_head_stride + columns[None, :]
    tl.store(pointers, acc.to(out_ptr.dtype.element_ty), mask=inside[:, None] & (columns < HEAD)[None, :])


@triton.jit(do_not_specialize=["requests", "rows", "splits", "elsewhere", "table_stride"])
def attend_paged(
    out_ptr, query_ptr, key_ptr, value_ptr, table_ptr, starts_ptr, lens_ptr, key_scale_ptr, value_scale_ptr,
    slopes_ptr, sinks_ptr, partial_ptr, lse_ptr, counter_ptr, scale, soft_cap, requests, rows, splits, elsewhere,
    table_stride,
    out_stride, out_head_stride, query_stride, query_head_stride,
    key_block_stride, key_slot_stride, key_head_stride, value_block_stride, value_slot_stride, value_head_stride,
    GROUP: tl.constexpr, HEAD: tl.constexpr, HEAD_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_Q: tl.constexpr, TILE: tl.constexpr, SPLIT: tl.constexpr, SPAN: tl.constexpr,
    SINGLE: tl.constexpr, SKIP_SINGLE: tl.constexpr, WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr,
    ALIBI: tl.constexpr, SINKS: tl.constexpr, QUANTISED: tl.constexpr, MERGE: tl.constexpr, PRECISION: tl.constexpr,
    GROUP_PAD: tl.constexpr, CHUNK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Attend BLOCK_Q tokens of one request, for the heads of one key head, to one split of its positions.

    Grid: SINGLE: (key heads, requests, splits), for requests of one token; the others are left alone. Otherwise
    (blocks of queries, key heads, 1), and SKIP_SINGLE leaves requests of one token alone. Prompts without a prefix of
    ``elsewhere`` tokens and more are left alone too: another kernel has them.
    SPAN: positions of a split, 0: an equal share. MERGE: the last split to end merges all. DEPENDENT: see
    ``wait_ahead``.
    """
    wait_ahead(DEPENDENT)
    behind = tl.load(starts_ptr + requests)  # here, so that all that is not known at first is waited for once
    if SINGLE:
        kv_head, request, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
        block = 0
        number, of = request, requests
    else:
        number, of = tl.program_id(0), tl.num_programs(0)
        turned = of - 1 - number  # the longest first
        kv_head, split = tl.program_id(1), 0
        request = find_request(starts_ptr, requests, turned, BLOCK_Q)
        block = turned - (tl.load(starts_ptr + request) // BLOCK_Q + request)
    start = tl.load(starts_ptr + request)
    new = tl.load(starts_ptr + request + 1) - start
    length = tl.load(lens_ptr + request)
    columns = tl.arange(0, HEAD_PAD)
    heads = kv_head * GROUP
    if split == 0:  # rows of no request
        for row in range(behind + number, rows, of):
            for head in range(heads, heads + GROUP):
                at = columns.to(tl.int64) + row * out_stride + head * out_head_stride
                tl.store(out_ptr + at, tl.zeros((HEAD_PAD,), out_ptr.dtype.element_ty), mask=columns < HEAD)
    if SINGLE:
        if new != 1:
            return
    else:
        if block * BLOCK_Q >= new:
            return
        if SKIP_SINGLE:
            if new == 1:
                return
    if not SINGLE:
        if (length == new) & (new >= elsewhere):
            return
    m = tl.arange(0, BLOCK_M)
    token = block * BLOCK_Q + m // GROUP
    head = heads + m % GROUP
    row_inside = (m < BLOCK_Q * GROUP) & (token < new)
    first = length - new + block * BLOCK_Q
    query_positions = length - new + token
    end = tl.minimum(first + BLOCK_Q, length)
    begin = 0
    if WINDOW > 0:
        begin = (tl.maximum(first - WINDOW + 1, 0) // TILE) * TILE
    low, high = begin, end
    active = 1
    if SPLIT:
        if SPAN > 0:
            origin, span = 0, SPAN
        else:
            origin = begin
            span = tl.cdiv(tl.cdiv(end - begin, splits), TILE) * TILE
        active = tl.maximum(tl.cdiv(end - origin, span), 1)
        low = tl.maximum(origin + split * span, begin)
        high = tl.minimum(origin + (split + 1) * span, end)
        if split >= active:
            return
    token_row = (start + token).to(tl.int64)
    q = tl.load(
        query_ptr + (token_row * query_stride + head * query_head_stride)[:, None] + columns[None, :],
        mask=row_inside[:, None] & (columns < HEAD)[None, :],
        other=0.0,
    )
    if QUANTISED:
        scale = scale * tl.load(key_scale_ptr)
    slopes = tl.zeros((BLOCK_M,), tl.float32)
    if ALIBI:
        slopes = tl.load(slopes_ptr + head, mask=row_inside, other=0.0).to(tl.float32) * LOG2E
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    if SINKS:
        if split == 0:
            top = tl.load(sinks_ptr + head, mask=row_inside, other=0.0).to(tl.float32) * LOG2E
            total = tl.full((BLOCK_M,), 1.0, tl.float32)
    acc = tl.zeros((BLOCK_M, HEAD_PAD), tl.float32)
    table_ptr += request.to(tl.int64) * table_stride
    key_head, value_head = kv_head * key_head_stride, kv_head * value_head_stride
    full = low
    if not SINGLE and WINDOW == 0:  # tiles that every row sees whole; a single token gains nothing by it
        full = low + (tl.maximum(tl.minimum(high, first + 1) - low, 0) // TILE) * TILE
        acc, top, total = attend_tiles(
            acc, top, total, q, low, full, end, query_positions, key_ptr, value_ptr, table_ptr, key_head, value_head,
            key_block_stride, key_slot_stride, value_block_stride, value_slot_stride, columns, scale, soft_cap, slopes,
            HEAD, HEAD_PAD, BLOCK_SIZE, TILE, WINDOW, SOFT_CAP, ALIBI, False, PRECISION,
        )  # fmt: skip
    acc, top, total = attend_tiles(
        acc, top, total, q, full, high, end, query_positions, key_ptr, value_ptr, table_ptr, key_head, value_head,
        key_block_stride, key_slot_stride, value_block_stride, value_slot_stride, columns, scale, soft_cap, slopes,
        HEAD, HEAD_PAD, BLOCK_SIZE, TILE, WINDOW, SOFT_CAP, ALIBI, True, PRECISION,
    )  # fmt: skip
    acc = acc / tl.where(total > 0.0, total, 1.0)[:, None]
    if SINKS:  # a request without positions
        acc = tl.where(length > 0, acc, 0.0)
    if QUANTISED:
        acc = acc * tl.load(value_scale_ptr)
    out_offsets = token_row * out_stride + head * out_head_stride
    if not SPLIT:
        inside = row_inside[:, None] & (columns < HEAD)[None, :]
        tl.store(out_ptr + out_offsets[:, None] + columns[None, :], acc.to(out_ptr.dtype.element_ty), mask=inside)
    else:
        lse = tl.where(total > 0.0, top + tl.log2(total), float("-inf"))
        row_offset = (request * (tl.num_programs(0) * GROUP) + head) * splits
        at = row_offset + split
        tl.store(partial_ptr + at.to(tl.int64)[:, None] * HEAD_PAD + columns[None, :], acc, mask=row_inside[:, None])
        tl.store(lse_ptr + at, lse, mask=row_inside)
        if MERGE:
            tl.debug_barrier()
            place = counter_ptr + request * tl.num_programs(0) + kv_head
            ended = tl.atomic_add(place, 1, sem="acq_rel")
            if ended == active - 1:
                tl.debug_barrier()
                merge_splits(
                    out_ptr, partial_ptr, lse_ptr, splits, active, request * (tl.num_programs(0) * GROUP), heads,
                    heads + GROUP, start.to(tl.int64) * out_stride, out_head_stride, GROUP_PAD, HEAD, HEAD_PAD, CHUNK,
                )  # fmt: skip
                tl.store(place, 0)


@triton.jit(do_not_specialize=["splits"])
def merge_rows(
    out_ptr, partial_ptr, lse_ptr, starts_ptr, lens_ptr, heads, splits, out_stride, out_head_stride,
    HEAD: tl.constexpr, HEAD_PAD: tl.constexpr, TILE: tl.constexpr, SPAN: tl.constexpr,
    WINDOW: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Merge the splits of one head of one request of one token. Grid: (heads, requests)."""
    head, request = tl.program_id(0), tl.program_id(1)
    start = tl.load(starts_ptr + request)
    if tl.load(starts_ptr + request + 1) - start != 1:
        return
    length = tl.load(lens_ptr + request)
    begin = 0
    if WINDOW > 0:
        begin = (tl.maximum(length - WINDOW, 0) // TILE) * TILE
    if SPAN > 0:
        active = tl.cdiv(length, SPAN)
    else:
        active = tl.cdiv(length - begin, tl.maximum(tl.cdiv(tl.cdiv(length - begin, splits), TILE) * TILE, TILE))
    active = tl.maximum(active, 1)
    merge_splits(
        out_ptr, partial_ptr, lse_ptr, splits, active, request * heads, head, head + 1, start.to(tl.int64) * out_stride,
        out_head_stride, 1, HEAD, HEAD_PAD, CHUNK,
    )  # fmt: skip
