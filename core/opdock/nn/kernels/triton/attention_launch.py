"""Starting the attention kernels: which block sizes, how many splits."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
from torch import Tensor

from opdock.nn.attention.impl import AttentionSpec
from opdock.nn.attention.metadata import AttentionMetadata
from opdock.nn.kernels.triton import relaunch
from opdock.nn.kernels.triton.attention import attend_paged, merge_rows
from opdock.nn.kernels.triton.attention_again import Counters, DecodePlan, keep, start_again

MOST_SPLITS = 64
"""The parts of a request that one program merges."""

MERGED_ELEMENTS = 8192
"""Of the parts that a program holds while it merges."""

TILE_BYTES = 96 * 1024
"""Of shared memory, for tiles in flight."""

SMALL_PAIR_BYTES = 32 * 1024
"""Of shared memory where it is small, for a tile of keys and one of values."""

SMALL_STAGES = 2
"""Tiles in flight where shared memory is small, the one that is computed with included; more spill on gfx942."""

NOWHERE = 1 << 30
"""More tokens than any prompt has."""

INVARIANT_SPAN = 1024
"""Positions of a split where the bits of a request must not depend on the batch."""


@dataclass(frozen=True)
class Tuning:
    """How a kernel is cut.

    Attributes:
        block_m: rows, which are tokens times the query heads of a key head; a power of two from 16.
        tile: positions at a time, a power of two from 16.
        warps: of a program.
        stages: tiles in flight.
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


@functools.cache
def units_of(index: int) -> int:
    """Return the number of multiprocessors of a GPU; of the interpreter below 0."""
    return 4 if index < 0 else int(torch.cuda.get_device_properties(index).multi_processor_count)


def has_small_memory(index: int) -> bool:
    """Return whether programs on the GPU of that index may have 64 KiB of shared memory only, as on AMD's."""
    return index >= 0 and torch.version.hip is not None


def tuning_for_single(
    spec: AttentionSpec, requests: int, max_seq_len: int, units: int, *, itemsize: int = 2, small_memory: bool = False
) -> Tuning:
    """Return the tuning for requests of one token; pure.

    Only numbers that are fixed while a graph is captured count: the lengths themselves do not.

    Args:
        spec: of the layer.
        requests: of the step.
        max_seq_len: the most positions of a request.
        units: multiprocessors of the device.
        itemsize: bytes of an element of the query.
        small_memory: whether a program may have 64 KiB of shared memory only.
    """
    block_m = max(16, triton.next_power_of_2(spec.num_heads // spec.num_kv_heads))
    tile = 64 if spec.head_size <= 128 else 32
    stages = _stages(4, tile, spec.head_size, itemsize)
    if spec.batch_invariant:
        splits = max(1, triton.cdiv(max_seq_len, INVARIANT_SPAN))
        found = Tuning(block_m, tile, 2, stages, splits=splits, span=INVARIANT_SPAN)
        return _fit(found, spec.head_size, itemsize) if small_memory else found
    # Four programs fit on a multiprocessor, each with a pair of tiles in flight; more only have more to merge.
    wanted = (units * 4) // max(1, requests * spec.num_kv_heads)
    most = triton.cdiv(max_seq_len, 2 * tile)
    splits = max(1, min(wanted, most, MOST_SPLITS))
    found = Tuning(block_m, tile, 2, stages, splits=splits)
    return _fit(found, spec.head_size, itemsize) if small_memory else found


def tuning_for_prompts(spec: AttentionSpec, *, itemsize: int = 2, small_memory: bool = False) -> Tuning:
    """Return the tuning for requests of several tokens; pure. Arguments are those of ``tuning_for_single``."""
    group = spec.num_heads // spec.num_kv_heads
    small = spec.head_size <= 128 and itemsize <= 2
    block_m = max(128 if small else 64, triton.next_power_of_2(group))
    tile = 64 if small else 32
    found = Tuning(block_m, tile, 8 if block_m > 64 else 4, _stages(3, tile, spec.head_size, itemsize))
    return _fit(found, spec.head_size, itemsize) if small_memory else found


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


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    metadata: AttentionMetadata,
    output: Tensor,
    spec: AttentionSpec,
    *,
    k_scale: Tensor,
    v_scale: Tensor,
    counters: Counters,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    single: Tuning | None = None,
    prompts: Tuning | None = None,
    elsewhere: int = NOWHERE,
) -> None:
    """Write the attention of every token of a step to ``output``; see ``AttentionImpl.forward``.

    Requests of one token and the others are taken by two launches; the first is left out where no request has more
    than one token. Prompts of ``elsewhere`` tokens and more, without a prefix, are left out. Nothing is read from the
    device, and grids depend on the metadata's numbers alone.
    """
    requests, rows = metadata.num_requests, metadata.num_tokens
    if not rows:
        return
    if not requests:
        output.zero_()
        return
    index = query.get_device()
    if index >= 0 and index != torch.cuda.current_device():
        with torch.cuda.device(index):
            paged_attention(
                query, key_cache, value_cache, metadata, output, spec, k_scale=k_scale, v_scale=v_scale,
                counters=counters, alibi_slopes=alibi_slopes, sinks=sinks, single=single, prompts=prompts,
                elsewhere=elsewhere,
            )  # fmt: skip
        return
    others = (k_scale, v_scale, alibi_slopes, sinks)
    done, kept = start_again(
        attend_paged, counters, spec, query, key_cache, value_cache, metadata, output, others,
        single or tuning_for_single, elsewhere,
    )  # fmt: skip
    if done:
        return
    group, head = spec.num_heads // spec.num_kv_heads, spec.head_size
    head_pad = max(16, triton.next_power_of_2(head))
    numbers = (spec.scale, spec.logits_soft_cap or 1.0, requests, rows)
    strides = (
        metadata.block_table.stride(0), output.stride(0), output.stride(1), query.stride(0), query.stride(1),
        *key_cache.stride()[:3], *value_cache.stride()[:3],
    )  # fmt: skip
    tensors = (
        output, query, key_cache, value_cache, metadata.block_table, metadata.query_start_loc, metadata.seq_lens,
        *others,
    )  # fmt: skip
    common: dict[str, Any] = {
        "GROUP": group,
        "HEAD": head,
        "HEAD_PAD": head_pad,
        "BLOCK_SIZE": key_cache.shape[1],
        "WINDOW": spec.sliding_window or 0,
        "SOFT_CAP": spec.logits_soft_cap is not None,
        "ALIBI": alibi_slopes is not None,
        "SINKS": sinks is not None,
        "QUANTISED": key_cache.dtype.itemsize == 1,
        "GROUP_PAD": triton.next_power_of_2(group),
        "CHUNK": max(2, min(16, MERGED_ELEMENTS // (triton.next_power_of_2(group) * head_pad))),
        "PRECISION": "ieee",  # without meaning in 16 bits, where Triton refuses others on AMD's GPUs but gfx942
    }
    several, small_memory = metadata.max_query_len > 1, has_small_memory(index)
    if several:
        t = prompts or tuning_for_prompts(spec, itemsize=query.element_size(), small_memory=small_memory)
        block_q = t.block_m // group
        blocks = rows // block_q + requests
        attend_paged[(blocks, spec.num_kv_heads, 1)](
            *tensors, None, None, None, *numbers, 1, elsewhere, *strides, **common, BLOCK_M=t.block_m, BLOCK_Q=block_q,
            TILE=t.tile, SPLIT=False, SPAN=0, SINGLE=False, SKIP_SINGLE=True, MERGE=False,
            num_warps=t.warps, num_stages=t.stages,
        )  # fmt: skip
        if metadata.query_lens is not None and 1 not in metadata.query_lens:
            return
    t = single or tuning_for_single(
        spec, requests, metadata.max_seq_len, units_of(index), itemsize=query.element_size(),
        small_memory=small_memory,
    )  # fmt: skip
    partial = lse = counter = None
    if t.splits > 1:
        partial = torch.empty(
            (requests * spec.num_heads * t.splits, head_pad), dtype=torch.float32, device=query.device
        )
        lse = torch.empty(requests * spec.num_heads * t.splits, dtype=torch.float32, device=query.device)
        if t.merge:
            counter = counters.of(requests * spec.num_kv_heads, query.device)
    grid = (spec.num_kv_heads, requests, t.splits)
    behind = (*numbers, t.splits, elsewhere, *strides)
    common |= {
        "BLOCK_M": t.block_m, "BLOCK_Q": 1, "TILE": t.tile, "SPLIT": t.splits > 1, "SPAN": t.span, "SINGLE": True,
        "SKIP_SINGLE": False, "MERGE": t.merge,
    }  # fmt: skip
    made = attend_paged[grid](
        *tensors, partial, lse, counter, *behind, **common, num_warps=t.warps, num_stages=t.stages
    )  # fmt: skip
    if kept is not None and (t.merge or t.splits == 1):
        again = relaunch.again_of(attend_paged, made, index)
        constants = relaunch.tail_of(attend_paged, len(tensors) + 3 + len(behind), common)
        sums = requests * spec.num_heads * t.splits if t.splits > 1 else 0
        if again is not None and constants is not None:
            sizes = sums * (head_pad + 1), sums * head_pad * 4, requests * spec.num_kv_heads
            keep(counters.plans(spec), kept, DecodePlan(again, grid, (*behind, *constants), *sizes))
    if t.splits > 1 and not t.merge:
        merge_rows[(spec.num_heads, requests)](
            output, partial, lse, metadata.query_start_loc, metadata.seq_lens, spec.num_heads, t.splits,
            output.stride(0), output.stride(1), HEAD=head, HEAD_PAD=head_pad, TILE=t.tile,
            SPAN=t.span, WINDOW=spec.sliding_window or 0, CHUNK=32,
            num_warps=4,
        )  # fmt: skip
