"""Decode steps as captured graphs: one for each bucket of batch sizes, replayed over buffers that stay in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opdock import context
from opdock.nn.attention.forward_context import set_forward_context
from opdock.nn.attention.metadata import PADDING_SLOT, AttentionMetadata, slots_of
from opdock.nn.attention.paged_cache import PagedKVCache
from opdock.nn.batch.inputs import block_table
from opdock.nn.batch.request import Part, Request


def why_no_graphs(device: torch.device) -> str:
    """Return why steps cannot be captured on a device, "" if they can."""
    platform = context.platform()
    if not platform.support_static_graph_mode():
        return "The platform has no graphs of launches: support_static_graph_mode() says no."
    if device.type == "cpu" or not hasattr(torch.get_device_module(device), "CUDAGraph"):
        return f"torch captures no launches on {device.type!r}."
    return ""


def bucket_sizes(most: int) -> tuple[int, ...]:
    """Return the batch sizes that get a graph: 1, 2, 4, every multiple of 8, and the largest."""
    return tuple(sorted({n for n in (1, 2, 4, *range(8, most + 1, 8)) if n <= most} | {most}))


@dataclass(frozen=True, eq=False)
class _Captured:
    graph: Any
    logits: torch.Tensor


class DecodeGraphs:
    """Steps of one new token for each request.

    The graph ends with the greedy tokens as the next step's input, so that a following step of the same requests can
    be launched before the host has read them. Rows beyond the requests of a step are padding: their keys go nowhere.

    Args:
        forward: input ids and positions to hidden rows, through the layers of ``cache``.
        compute_logits: hidden rows to logits.
        cache: bound to the model.
        max_requests: the largest batch.
        width: columns of the block table.
    """

    def __init__(
        self,
        forward: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        compute_logits: Callable[[torch.Tensor], torch.Tensor],
        cache: PagedKVCache,
        *,
        max_requests: int,
        width: int,
        device: torch.device,
    ) -> None:
        """Allocate the buffers; a graph is captured when its size first comes."""
        self._forward, self._compute_logits, self._cache, self._width = forward, compute_logits, cache, width
        self._sizes = bucket_sizes(max_requests)
        self._most = most = max_requests + max_requests % 2  # so that 8-byte numbers end on their border
        self._rows: list[Request] = []
        self._captured: dict[int, _Captured] = {}
        self._torch = torch.get_device_module(device)
        self._pool: Any = None
        # positions, slots, and lengths (half as long) are sent together
        self._sent = torch.zeros(2 * most + most // 2, dtype=torch.int64, device=device)
        self._positions, self._slots = self._sent[:most], self._sent[most : 2 * most]
        self._seq_lens = self._sent[2 * most :].view(torch.int32)
        self._slots.fill_(PADDING_SLOT)
        self.input_ids = torch.zeros(most, dtype=torch.int64, device=device)
        self._table = torch.zeros(most, width, dtype=torch.int32, device=device)
        self._starts = torch.arange(most + 1, dtype=torch.int32, device=device)

    def follows(self, parts: Sequence[Part]) -> bool:
        """Return whether the input of these decodes is what the last replay chose, still on the device."""
        return [p.request for p in parts] == self._rows

    def replay(self, parts: Sequence[Part], *, known: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Launch one step and return the greedy tokens, (requests,), and the logits, (requests, vocab).

        Both are buffers: the tokens are the next step's input and may be changed, the logits hold until it is launched.

        Args:
            parts: decodes.
            known: whether their tokens are known on the host; otherwise ``follows`` must hold.
        """
        count = len(parts)
        size = next(n for n in self._sizes if n >= count)
        if size not in self._captured:
            self._captured[size] = self._capture(size)
        if known:
            ids = torch.tensor([p.request.tokens[p.start] for p in parts], dtype=torch.int64)
            self.input_ids[:count].copy_(ids.pin_memory(), non_blocking=True)
        rows = [p.request for p in parts]
        if rows != self._rows:
            table = block_table([r.blocks for r in rows], self._width)
            self._table[:count].copy_(table.pin_memory(), non_blocking=True)
            self._rows = rows
        self._send(parts)
        captured = self._captured[size]
        captured.graph.replay()
        return self.input_ids[:count], captured.logits[:count]

    def _send(self, parts: Sequence[Part]) -> None:
        """Put positions, slots and lengths of a step into the buffers."""
        block_size, rest = self._cache.block_size, self._most - len(parts)
        positions = [p.start for p in parts]
        slots = [slots_of(p.request.blocks, p.start, p.end, block_size)[0] for p in parts]
        numbers = torch.tensor([*positions, *[0] * rest, *slots, *[PADDING_SLOT] * rest], dtype=torch.int64)
        lens = torch.tensor([*(p.end for p in parts), *[0] * rest], dtype=torch.int32)
        packed = torch.cat((numbers, lens.view(torch.int64)))
        self._sent.copy_(packed.pin_memory(), non_blocking=True)

    def _capture(self, size: int) -> _Captured:
        """Capture a step of ``size`` rows; the buffers hold padding while it runs, so that no cache is written."""
        self._rows = []
        self._send(())
        metadata = AttentionMetadata(
            query_start_loc=self._starts[: size + 1],
            seq_lens=self._seq_lens[:size],
            block_table=self._table[:size],
            slot_mapping=self._slots[:size],
            num_tokens=size,
            max_query_len=1,
            max_seq_len=self._width * self._cache.block_size,
        )
        ids, positions = self.input_ids[:size], self._positions[:size]
        kept = ids.clone()

        def step() -> torch.Tensor:
            logits = self._compute_logits(self._forward(ids, positions))
            ids.copy_(logits.argmax(dim=-1))
            return logits

        with set_forward_context(metadata, self._cache):
            stream = self._torch.Stream()
            stream.wait_stream(self._torch.current_stream())
            with self._torch.stream(stream):  # compilation, and libraries that allocate at their first call
                for _ in range(2):
                    step()
            self._torch.current_stream().wait_stream(stream)
            graph = self._torch.CUDAGraph()
            self._pool = self._pool or self._torch.graph_pool_handle()
            with self._torch.graph(graph, pool=self._pool, stream=stream):
                logits = step()
        ids.copy_(kept)
        return _Captured(graph, logits)
