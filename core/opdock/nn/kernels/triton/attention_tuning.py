"""How the attention kernels are cut into programs: pure functions of the sizes, measured on an H200."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

from dataclasses import dataclass, replace

import triton

from opdock.nn.attention.impl import AttentionSpec

MOST_SPLITS = 64
"""The parts of a request that one program merges."""

FEW_PAIRS = 16
"""Requests times key heads: so few leave most multiprocessors to splits, which then decide."""

LENGTHS = 64
"""Positions: steps whose longest requests have as many of these, rounded up, are cut alike."""

TILE_BYTES = 96 * 1024
"""Of shared memory, for tiles in flight, where it was not measured."""

SMALL_MEMORY = 64 * 1024
"""Bytes of shared memory of a program on AMD's GPUs."""

SMALL_PAIR_BYTES = SMALL_MEMORY // 2
"""Of shared memory where it is small, for a tile of keys and one of values."""

SMALL_STAGES = 2
"""Tiles in flight where shared memory is small, the one that is computed with included; more spill on gfx942."""

WIDE_MEMORY = 160 * 1024
"""Bytes of shared memory from which a program of wide tiles fits."""

MOST_MEMORY = 227 * 1024
"""Bytes of shared memory of a program on an H200."""

INVARIANT_SPAN = 1024
"""Positions of a split where the bits of a request must not depend on the batch."""


@dataclass(frozen=True)
class Tuning:
    """How a kernel is cut.

    Attributes:
        block_m: rows, which are tokens times the query heads of a key head; a power of two from 16.
        tile: positions at a time, a power of two from 16.
        warps: of a program.
        stages: of Triton's pipeline. The table's entries take half of them: of 4 and 5, one and two tiles of keys and
            of values are in flight.
        splits: parts that the positions of a request are cut into; 1 for prompts.
        span: positions of a split, a multiple of tile; 0: an equal share.
        merge: whether the last split to end merges all; else another kernel does.
    """

    block_m: int
    tile: int
    warps: int
    stages: int
    splits: int = 1
    span: int = 0
    merge: bool = True


def tuning_for_single(
    spec: AttentionSpec,
    requests: int,
    max_seq_len: int,
    units: int,
    *,
    itemsize: int = 2,
    memory: int = MOST_MEMORY,
) -> Tuning:
    """Return the tuning for requests of one token; pure.

    Only numbers that are fixed while a graph is captured count: the lengths themselves do not.

    Args:
        spec: of the layer.
        requests: of the step.
        max_seq_len: the most positions of a request; those that ``LENGTHS`` rounds up alike are cut alike.
        units: multiprocessors of the device.
        itemsize: bytes of an element of the query.
        memory: bytes of shared memory that a program may have.
    """
    block_m = max(16, triton.next_power_of_2(spec.num_heads // spec.num_kv_heads))
    longest, pairs = max(1, triton.cdiv(max_seq_len, LENGTHS)) * LENGTHS, max(1, requests * spec.num_kv_heads)
    if block_m == 16 and itemsize <= 2 and memory > SMALL_MEMORY and not spec.batch_invariant:
        found = _measured(spec.head_size, pairs, longest, units, memory)
        if found is not None:
            return found
    tile = 64 if spec.head_size <= 128 else 32
    found = Tuning(block_m, tile, 2, _stages(4, tile, spec.head_size, itemsize))
    if spec.batch_invariant:
        found = replace(found, splits=max(1, triton.cdiv(max_seq_len, INVARIANT_SPAN)), span=INVARIANT_SPAN)
    else:  # four programs fit on a multiprocessor; more only have more to merge
        most = min(4 * units // pairs, triton.cdiv(longest, 2 * tile), MOST_SPLITS)
        found = replace(found, splits=max(1, most))
    return _fit(found, spec.head_size, itemsize) if memory <= SMALL_MEMORY else found


def _measured(head: int, pairs: int, longest: int, units: int, memory: int) -> Tuning | None:
    """Return the tuning for up to 16 query heads of a key head, 16 bits wide; None: heads that were not measured.

    Args:
        head: elements of a head.
        pairs: requests times key heads.
        longest: positions of a request.
        units: multiprocessors of the device.
        memory: bytes of shared memory that a program may have.
    """
    if pairs >= 3 * units:
        return Tuning(16, 16, 1, 5 if head <= 128 else 4)
    each = min(MOST_SPLITS, max(1, units // pairs))
    if pairs <= FEW_PAIRS and memory >= WIDE_MEMORY and longest >= min(256 * each, 8192):
        # a program for each multiprocessor, with as much in flight as fits
        return Tuning(16, 128 if head <= 128 else 64, 4, 5, splits=each)
    if head > 128:
        return None
    if pairs <= FEW_PAIRS:
        return Tuning(16, 16, 2, 5, splits=min(max(32, 2 * units // pairs), longest // 32, MOST_SPLITS))
    # single warps wait for nobody, and enough of them fit on a multiprocessor
    wanted = (4 if head > 64 else 6) * units // pairs
    return Tuning(16, 16, 1, 5, splits=max(1, min(wanted, longest // 32, MOST_SPLITS)))


def tuning_for_prompts(spec: AttentionSpec, *, itemsize: int = 2, memory: int = MOST_MEMORY) -> Tuning:
    """Return the tuning for requests of several tokens; pure. Arguments are those of ``tuning_for_single``."""
    group = spec.num_heads // spec.num_kv_heads
    small = spec.head_size <= 128 and itemsize <= 2
    block_m = max(128 if small else 64, triton.next_power_of_2(group))
    tile = 64 if small else 32
    found = Tuning(block_m, tile, 8 if block_m > 64 else 4, _stages(3, tile, spec.head_size, itemsize))
    return _fit(found, spec.head_size, itemsize) if memory <= SMALL_MEMORY else found


def _stages(wanted: int, tile: int, head_size: int, itemsize: int) -> int:
    """Return the number of tiles in flight, so that keys and values fit in shared memory."""
    pair: int = 2 * tile * triton.next_power_of_2(head_size) * itemsize
    return max(2, min(wanted, 1 + TILE_BYTES // pair))


def _fit(tuning: Tuning, head_size: int, itemsize: int) -> Tuning:
    """Return a tuning whose tiles take a part of 64 KiB; the rest is for products and sums."""
    tile, padded = tuning.tile, max(16, triton.next_power_of_2(head_size))
    while tile > 16 and 2 * tile * padded * itemsize > SMALL_PAIR_BYTES:
        tile //= 2
    return replace(tuning, tile=tile, stages=SMALL_STAGES)
