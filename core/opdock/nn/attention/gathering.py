"""Reading one request's keys and values out of the blocks of a paged cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from opdock.errors import ConfigError
from opdock.nn.attention.metadata import AttentionMetadata


def requests_of(metadata: AttentionMetadata, block_size: int, layer_name: str) -> Iterator[tuple[int, int, int, int]]:
    """Yield (request, first row, row behind the last, positions) of each request that has rows.

    Raises: ConfigError, with the layer's name, for a request with more positions than its blocks hold, or fewer than it
        has rows; none at all are a request that is not there.
    """
    starts, width = metadata.query_start_loc.tolist(), metadata.block_table.shape[1]
    for request, total in enumerate(metadata.seq_lens.tolist()):
        new = starts[request + 1] - starts[request]
        if new <= 0:
            continue
        if total > width * block_size or 0 < total < new:
            raise ConfigError(
                f"Request {request} of the step has {new} new tokens and {total} positions.",
                who=f"layer {layer_name}",
                why=f"Its block table has {width} blocks of {block_size}, and its new tokens are positions too.",
                remedy="AttentionMetadata.build makes a step whose numbers fit each other.",
            )
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
