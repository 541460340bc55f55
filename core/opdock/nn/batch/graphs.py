"""Decode steps as captured graphs: one for each bucket of batch sizes, replayed over buffers that stay in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from opdock.nn.attention.forward_context import set_forward_context
from opdock.nn.attention.metadata import PADDING_SLOT, AttentionMetadata, slots_of
from opdock.nn.attention.paged_cache import PagedKVCache
from opdock.nn.batch.capture import Capture
from opdock.nn.batch.inputs import block_table
from opdock.nn.batch.request import Part, Request


def bucket_sizes(most: int) -> tuple[int, ...]:
    """Return the batch sizes that get a graph: 1, 2, 4, every multiple of 8, and the largest."""
    return tuple(sorted({n for n in (1, 2, 4, *range(8, most + 1, 8)) if n <= most} | {most}))


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
        device: of the model.
        capture: what makes a graph of a step.
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
        capture: Capture,
    ) -> None:
        """Allocate the buffers; a graph is captured when its size first comes."""
        self._forward, self._compute_logits, self._cache, self._width = forward, compute_logits, cache, width
        self._sizes = bucket_sizes(max_requests)
        self._most = most = max_requests + max_requests % 2  # so that 8-byte numbers end on their border
        self._rows: list[Request] = []
        self._capture = capture
        self._captured: dict[int, tuple[Callable[[], object], torch.Tensor]] = {}
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

    def forget(self) -> None:
        """Take the buffers for unknown: the next replay needs tokens from the host."""
        self._rows = []

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
            self._captured[size] = self._make(size)
        run, logits = self._captured[size]
        if known:
            _put(torch.tensor([p.request.tokens[p.start] for p in parts], dtype=torch.int64), self.input_ids)
        rows = [p.request for p in parts]
        if rows != self._rows:
            _put(block_table([r.blocks for r in rows], self._width), self._table)
            self._rows = rows
        self._send(parts)
        run()
        return self.input_ids[:count], logits[:count]

    def _send(self, parts: Sequence[Part]) -> None:
        """Put positions, slots and lengths of a step into the buffers."""
        block_size, rest = self._cache.block_size, self._most - len(parts)
        positions = [p.start for p in parts]
        slots = [slots_of(p.request.blocks, p.start, p.end, block_size)[0] for p in parts]
        numbers = torch.tensor([*positions, *[0] * rest, *slots, *[PADDING_SLOT] * rest], dtype=torch.int64)
        lens = torch.tensor([*(p.end for p in parts), *[0] * rest], dtype=torch.int32)
        _put(torch.cat((numbers, lens.view(torch.int64))), self._sent)

    def _make(self, size: int) -> tuple[Callable[[], object], torch.Tensor]:
        """Capture a step of ``size`` rows, while the buffers hold padding, so that no cache is written."""
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

        def step() -> torch.Tensor:
            logits = self._compute_logits(self._forward(ids, positions))
            ids.copy_(logits.argmax(dim=-1))
            return logits

        with set_forward_context(metadata, self._cache):
            return self._capture(step)


def _put(values: torch.Tensor, buffer: torch.Tensor) -> None:
    """Copy values into the first rows of a buffer; from the host, without waiting."""
    if buffer.device.type != "cpu":
        values = values.pin_memory()
    buffer[: values.shape[0]].copy_(values, non_blocking=True)
