"""Which rows go to which expert, found on the device: no host synchronisation, sizes of the worst case."""

# ruff: noqa: ANN001, ANN201, N803 - Triton has its own types and habits
# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-not-found,attr-defined"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from opdock.nn.kernels.triton.launch import launch

_CHUNK, _SMALL = 1024, 4096  # places of a program; up to so many, each expert's program looks at all


class Plan(NamedTuple):
    """The rows of a step by expert.

    Attributes:
        rows: (numel,) int32: places (token * top_k + slot) sorted by expert; None: every place is a block of its own.
        table: (3, blocks) int32: of each block of rows its expert, its first row and its number of rows, 0 for
            blocks that are not needed; without ``rows``, the expert of each place, -1 for one that lies elsewhere.
        blocks: number of blocks in the worst case.
    """

    rows: Tensor | None
    table: Tensor
    blocks: int


def most_blocks(numel: int, experts: int, block: int) -> int:
    """Return how many blocks ``numel`` places need at most: each expert may leave one block unfilled."""
    return min(numel, -(-numel // block) + experts)


@triton.jit
def local_expert(ids_ptr, map_ptr, places, inside, experts):
    """Return the local experts of places; ``experts`` for one that lies elsewhere or is no expert."""
    found = tl.load(ids_ptr + places, mask=inside, other=-1).to(tl.int32)
    if map_ptr is not None:
        found = tl.load(map_ptr + found, mask=inside & (found >= 0), other=-1).to(tl.int32)
    return tl.where((found >= 0) & (found < experts) & inside, found, experts)


@triton.jit
def write_blocks(counts, mine, table_ptr, experts, blocks, BINS: tl.constexpr, BM: tl.constexpr):
    """Write the blocks of one expert, or, as expert ``experts``, those that nobody needs; return its first row."""
    bins = tl.arange(0, BINS)
    needed = (counts + BM - 1) // BM
    before = bins < mine
    first = tl.sum(tl.where(before, counts, 0), axis=0)
    block = tl.sum(tl.where(before, needed, 0), axis=0)
    count = tl.sum(tl.where(bins == mine, counts, 0), axis=0)
    end = block + tl.sum(tl.where(bins == mine, needed, 0), axis=0)
    if mine == experts:
        end = blocks
    for begin in range(block, end, BINS):
        numbers = begin + bins
        inside = numbers < end
        row = (numbers - block) * BM
        tl.store(table_ptr + numbers, bins * 0 + mine, mask=inside)
        tl.store(table_ptr + blocks + numbers, first + row, mask=inside)
        tl.store(table_ptr + 2 * blocks + numbers, tl.minimum(count - row, BM), mask=inside)
    return first


@triton.jit(do_not_specialize=["numel", "experts", "blocks"])
def plan_expert(
    ids_ptr, map_ptr, rows_ptr, table_ptr, numel, experts, blocks,
    CHUNK: tl.constexpr, BINS: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Make the part of the plan of one expert: each program counts all places, and finds its own."""
    mine = tl.program_id(0)
    counts = tl.zeros((BINS,), tl.int32)
    for begin in range(0, numel, CHUNK):
        places = begin + tl.arange(0, CHUNK)
        counts += tl.histogram(local_expert(ids_ptr, map_ptr, places, places < numel, experts), BINS)
    counts = tl.where(tl.arange(0, BINS) < experts, counts, 0)
    row = write_blocks(counts, mine, table_ptr, experts, blocks, BINS, BM)
    if mine < experts:
        for begin in range(0, numel, CHUNK):
            places = begin + tl.arange(0, CHUNK)
            here = (local_expert(ids_ptr, map_ptr, places, places < numel, experts) == mine).to(tl.int32)
            tl.store(rows_ptr + row + tl.cumsum(here, axis=0) - here, places, mask=here > 0)
            row += tl.sum(here, axis=0)


@triton.jit(do_not_specialize=["numel", "experts"])
def count_chunk(ids_ptr, map_ptr, counts_ptr, numel, experts, CHUNK: tl.constexpr, BINS: tl.constexpr):
    """Add the number of rows that each expert has in a chunk."""
    places = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    counts = tl.histogram(local_expert(ids_ptr, map_ptr, places, places < numel, experts), BINS)
    bins = tl.arange(0, BINS)
    tl.atomic_add(counts_ptr + bins, counts, mask=(bins < experts) & (counts > 0), sem="relaxed")


@triton.jit(do_not_specialize=["experts", "blocks"])
def plan_table(counts_ptr, cursor_ptr, table_ptr, experts, blocks, BINS: tl.constexpr, BM: tl.constexpr):
    """Write where one expert's rows begin, and its blocks, from the counts."""
    mine = tl.program_id(0)
    bins = tl.arange(0, BINS)
    counts = tl.load(counts_ptr + bins, mask=bins < experts, other=0)
    tl.store(cursor_ptr + mine, write_blocks(counts, mine, table_ptr, experts, blocks, BINS, BM))


@triton.jit(do_not_specialize=["numel", "experts"])
def scatter_chunk(ids_ptr, map_ptr, cursor_ptr, rows_ptr, numel, experts, CHUNK: tl.constexpr):
    """Put the places of a chunk behind those that their experts have already; their order is any."""
    places = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    expert = local_expert(ids_ptr, map_ptr, places, places < numel, experts)
    here = expert < experts
    row = tl.atomic_add(cursor_ptr + expert, 1, mask=here, sem="relaxed")
    tl.store(rows_ptr + row, places, mask=here)


@triton.jit(do_not_specialize=["numel", "experts"])
def experts_of(ids_ptr, map_ptr, table_ptr, numel, experts, CHUNK: tl.constexpr):
    """Write the local expert of each place, -1 for one that lies elsewhere."""
    places = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    expert = local_expert(ids_ptr, map_ptr, places, places < numel, experts)
    tl.store(table_ptr + places, tl.where(expert < experts, expert, -1), mask=places < numel)


def make_plan(ids: Tensor, experts: int, block: int, expert_map: Tensor | None = None) -> Plan:
    """Sort the places of a step by expert, into blocks of rows of one expert each.

    Args:
        ids: (tokens, top_k) int32 or int64, contiguous.
        experts: number of local experts.
        block: rows of a block.
        expert_map: (all experts,) int32: local number of each, -1 for those elsewhere; None: all are here.
    """
    numel, device = ids.numel(), ids.device
    if numel <= max(8, experts // 8):
        if expert_map is None:
            return Plan(None, ids, numel)
        table = torch.empty(numel, dtype=torch.int32, device=device)
        launch(experts_of, (triton.cdiv(numel, 128),), ("table_ptr",), (ids, expert_map, table, numel, experts), 4,
               CHUNK=128)  # fmt: skip
        return Plan(None, table, numel)
    blocks, bins = most_blocks(numel, experts, block), triton.next_power_of_2(experts + 1)
    rows = torch.empty(numel, dtype=torch.int32, device=device)
    table = torch.empty((3, blocks), dtype=torch.int32, device=device)
    if numel <= _SMALL:
        args = (ids, expert_map, rows, table, numel, experts, blocks)
        chunk = min(max(triton.next_power_of_2(numel), 128), _CHUNK)
        launch(plan_expert, (experts + 1,), ("rows_ptr", "table_ptr"), args, 4, CHUNK=chunk, BINS=bins, BM=block)
        return Plan(rows, table, blocks)
    counts = torch.zeros(experts, dtype=torch.int32, device=device)
    cursor = torch.empty(experts + 1, dtype=torch.int32, device=device)
    grid = (triton.cdiv(numel, _CHUNK),)
    launch(count_chunk, grid, ("counts_ptr",), (ids, expert_map, counts, numel, experts), 4, CHUNK=_CHUNK, BINS=bins)
    launch(plan_table, (experts + 1,), ("cursor_ptr", "table_ptr"), (counts, cursor, table, experts, blocks), 4,
           BINS=bins, BM=block)  # fmt: skip
    launch(scatter_chunk, grid, ("cursor_ptr", "rows_ptr"), (ids, expert_map, cursor, rows, numel, experts), 4,
           CHUNK=_CHUNK)  # fmt: skip
    return Plan(rows, table, blocks)
