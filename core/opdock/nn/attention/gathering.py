"""Reading one request's keys and values out of the blocks of a paged cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from opdock.nn.attention.metadata import AttentionMetadata


def requests_of(metadata: AttentionMetadata) -> Iterator[tuple[int, int, int, int]]:
    """Yield (request, first row, row behind the last, positions) of each request that has rows."""
    starts = metadata.query_start_loc.tolist()
    for request, total in enumerate(metadata.seq_lens.tolist()):
        if starts[request + 1] > starts[request]:
            yield request, starts[request], starts[request + 1], total


def gather(
    cache: Tensor, block_table: Tensor, request: int, positions: int, scale: Tensor, dtype: torch.dtype
) -> Tensor:
    """Return the first ``positions`` keys or values of a request, (positions, num_kv_heads, head_size).

    Only written slots are used, so that what lies in the others does not matter. An 8-bit cache is multiplied by
    ``scale``.
    """
    blocks = -(-positions // cache.shape[1])
    raw = cache.view(torch.uint8) if cache.dtype.itemsize == 1 else cache
    found = raw.index_select(0, block_table[request, :blocks].long()).flatten(0, 1)[:positions]
    if cache.dtype.itemsize == 1:
        return (found.view(cache.dtype).float() * scale).to(dtype)
    return found.to(dtype)
