"""Rotary position embedding of queries and keys, in place."""

# ruff: noqa: ANN001, ANN201, FBT001, FBT002, N803 - Triton has its own types and habits
# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-not-found,attr-defined"

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from opdock.nn.kernels.triton.launch import launch
from opdock.nn.kernels.triton.target import target_of, warps_for

if TYPE_CHECKING:
    from torch import Tensor

_PAIRS = 1024


@triton.jit
def rotate_heads(
    x_ptr, head, heads, head_stride, cos, sin, pairs, HEADS: tl.constexpr, BLOCK: tl.constexpr, NEOX: tl.constexpr
):
    """Rotate HEADS heads of one token by (BLOCK,) angles."""
    rows = head + tl.arange(0, HEADS)
    row_inside = (rows < heads)[:, None]
    x_ptr += rows.to(tl.int64)[:, None] * head_stride
    if NEOX:
        columns = tl.arange(0, BLOCK)[None, :]
        inside = row_inside & (columns < pairs)
        left = tl.load(x_ptr + columns, mask=inside, other=0.0)
        a, b = left.to(tl.float32), tl.load(x_ptr + pairs + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(x_ptr + columns, (a * cos - b * sin).to(left.dtype), mask=inside)
        tl.store(x_ptr + pairs + columns, (b * cos + a * sin).to(left.dtype), mask=inside)
    else:  # pairs lie side by side: read and written as they lie, and taken apart in registers
        columns = tl.arange(0, 2 * BLOCK)[None, :]
        inside = row_inside & (columns < 2 * pairs)
        both = tl.load(x_ptr + columns, mask=inside, other=0.0)
        a, b = tl.split(tl.reshape(both.to(tl.float32), (HEADS, BLOCK, 2)))
        turned = tl.join(a * cos - b * sin, b * cos + a * sin)
        tl.store(x_ptr + columns, tl.reshape(turned, (HEADS, 2 * BLOCK)).to(both.dtype), mask=inside)


@triton.jit
def rotate_token(
    q_ptr,
    k_ptr,
    positions_ptr,
    table_ptr,
    positions_stride,
    table_rows,
    table_stride,
    pairs,
    q_heads,
    k_heads,
    q_stride,
    q_head_stride,
    k_stride,
    k_head_stride,
    q_blocks,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    NEOX: tl.constexpr,
):
    """Rotate HEADS heads of one token: of the query in the first ``q_blocks`` programs, of the key in the others."""
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    position = tl.load(positions_ptr + token * positions_stride).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    known = (position >= 0) & (position < table_rows)
    # A position outside the table has no angles: NaN shows it, and nothing outside is read.
    table_ptr += tl.where(known, position, 0) * table_stride
    cos = tl.load(table_ptr + columns, mask=columns < pairs, other=0.0).to(tl.float32)
    sin = tl.load(table_ptr + pairs + columns, mask=columns < pairs, other=0.0).to(tl.float32)
    cos = tl.where(known, cos, float("nan"))[None, :]
    if block < q_blocks:
        q_ptr += token * q_stride
        rotate_heads(q_ptr, block * HEADS, q_heads, q_head_stride, cos, sin[None, :], pairs, HEADS, BLOCK, NEOX)
    else:
        k_ptr += token * k_stride
        head = (block - q_blocks) * HEADS
        rotate_heads(k_ptr, head, k_heads, k_head_stride, cos, sin[None, :], pairs, HEADS, BLOCK, NEOX)


def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox: bool = True
) -> tuple[Tensor, Tensor]:
    """Rotate ``query`` and ``key`` where they are, views of a joint tensor too, and return them.

    Shapes and roundings as in ``ir.ops.rotary_embedding``; a position outside the table gives NaN.
    """
    (q_heads, q_stride, q_head), (k_heads, k_stride, k_head) = _heads(query, head_size), _heads(key, head_size)
    table_rows, rot_dim = cos_sin_cache.shape
    tokens, pairs = positions.shape[0], rot_dim // 2
    if tokens and q_heads + k_heads and table_rows:
        block = triton.next_power_of_2(pairs)
        heads = max(1, min(_PAIRS // block, triton.next_power_of_2(max(q_heads, k_heads))))
        q_blocks, k_blocks = triton.cdiv(q_heads, heads), triton.cdiv(k_heads, heads)
        sizes = (positions.stride(0), table_rows, cos_sin_cache.stride(0), pairs, q_heads, k_heads)
        launch(
            rotate_token,
            (tokens, q_blocks + k_blocks),
            ("q_ptr", "k_ptr"),
            (query, key, positions, cos_sin_cache, *sizes, q_stride, q_head, k_stride, k_head, q_blocks),
            num_warps=warps_for(2 * heads * block, target_of(query.get_device()).warp_size),
            HEADS=heads,
            BLOCK=block,
            NEOX=is_neox,
        )
    return query, key


def _heads(x: Tensor, head_size: int) -> tuple[int, int, int]:
    """Return the number of heads, the stride of a token and that of a head."""
    if x.dim() == 3:
        return x.shape[1], x.stride(0), x.stride(1)
    return x.shape[1] // head_size, x.stride(0), head_size
