"""Starting the attention kernels: which block sizes, how many splits."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
from torch import Tensor

from opdock.nn.attention.impl import AttentionSpec
from opdock.nn.attention.metadata import AttentionMetadata
from opdock.nn.kernels.triton import relaunch
from opdock.nn.kernels.triton.attention import attend_paged, merge_rows
from opdock.nn.kernels.triton.attention_again import Counters, DecodePlan, keep, start_again
from opdock.nn.kernels.triton.attention_tuning import (
    MOST_MEMORY,
    SMALL_MEMORY,
    TILE_BYTES,
    Tuning,
    tuning_for_prompts,
    tuning_for_single,
)
from opdock.nn.kernels.triton.dependent import can_depend

MERGED_ELEMENTS = 4096
"""Of the parts that a program of one warp holds while it merges; one of more holds twice as many."""

NOWHERE = 1 << 30
"""More tokens than any prompt has."""


@functools.cache
def units_of(index: int) -> int:
    """Return the number of multiprocessors of a GPU; of the interpreter below 0."""
    return 4 if index < 0 else int(torch.cuda.get_device_properties(index).multi_processor_count)


@functools.cache
def memory_of(index: int) -> int:
    """Return the bytes of shared memory that a program on a GPU may have; of the interpreter below 0 as on an H200."""
    if index < 0:
        return MOST_MEMORY
    if torch.version.hip is not None:
        return SMALL_MEMORY
    found = getattr(torch.cuda.get_device_properties(index), "shared_memory_per_block_optin", TILE_BYTES)
    return int(found)


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
        "PRECISION": "ieee",  # without meaning in 16 bits, where Triton refuses others on AMD's GPUs but gfx942
    }
    several, memory = metadata.max_query_len > 1, memory_of(index)
    if several:
        t = prompts or tuning_for_prompts(spec, itemsize=query.element_size(), memory=memory)
        block_q = t.block_m // group
        blocks = rows // block_q + requests
        attend_paged[(blocks, spec.num_kv_heads, 1)](
            *tensors, None, None, None, *numbers, 1, elsewhere, *strides, **common, BLOCK_M=t.block_m, BLOCK_Q=block_q,
            TILE=t.tile, SPLIT=False, SPAN=0, SINGLE=False, SKIP_SINGLE=True, MERGE=False,
            CHUNK=2, DEPENDENT=False, num_warps=t.warps, num_stages=t.stages,
        )  # fmt: skip
        if metadata.query_lens is not None and 1 not in metadata.query_lens:
            return
    t = single or tuning_for_single(
        spec, requests, metadata.max_seq_len, units_of(index), itemsize=query.element_size(),
        memory=memory,
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
        "CHUNK": max(2, min(16, MERGED_ELEMENTS * min(2, t.warps) // (common["GROUP_PAD"] * head_pad))),
        "DEPENDENT": can_depend(index),
    }  # fmt: skip
    early = {"launch_pdl": True} if common["DEPENDENT"] else {}
    made = attend_paged[grid](
        *tensors, partial, lse, counter, *behind, **common, num_warps=t.warps, num_stages=t.stages, **early
    )
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
