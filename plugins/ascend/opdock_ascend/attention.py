"""The attention backend ``ASCEND``: paged attention for decoded tokens, fused attention for prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from opdock.nn.attention.backend import AttentionBackend, AttentionSelectorConfig
from opdock.nn.attention.impl import AttentionImpl
from opdock.nn.attention.metadata import AttentionMetadata
from opdock_ascend import limits, ops
from opdock_ascend.predicates import DEVICE
from opdock_ascend.probe import chip

if TYPE_CHECKING:
    from opdock.platforms.interface import DeviceCapability

NAME = "ASCEND"

OTHER_LAYOUT = ("Ascend310",)
"""How the names of chips begin whose caches the operator wants in its format NZ."""


@dataclass(frozen=True)
class Part:
    """Requests of a step that one operator serves.

    Args:
        requests: their numbers.
        rows: the rows of each in the step's tokens, first and behind the last.
        lengths: positions of each after the step.
    """

    requests: tuple[int, ...]
    rows: tuple[tuple[int, int], ...]
    lengths: tuple[int, ...]

    @property
    def adjacent(self) -> bool:
        """Whether the rows lie one behind the other."""
        return all(a[1] == b[0] for a, b in pairwise(self.rows))


@dataclass(frozen=True)
class Plan:
    """Which operator serves which requests; a request without rows or positions is served by none."""

    decodes: Part
    prompts: Part
    continued: Part
    whole: bool
    """Whether every row is written by an operator."""


def plan(starts: Sequence[int], lengths: Sequence[int], num_tokens: int) -> Plan:
    """Return the plan of a step; pure.

    Args:
        starts: the first row of each request, and the row behind the last one.
        lengths: positions of each request after the step; 0 is a request that is not there.
        num_tokens: rows of the step, padding included.
    """
    kinds: dict[str, list[tuple[int, tuple[int, int], int]]] = {"decodes": [], "prompts": [], "continued": []}
    served = 0
    for request, (rows, length) in enumerate(zip(pairwise(starts), lengths, strict=True)):
        new = rows[1] - rows[0]
        if new and length:
            kind = "decodes" if new == 1 else "prompts" if new == length else "continued"
            kinds[kind].append((request, rows, length))
            served += new
    parts = {
        name: Part(tuple(f[0] for f in found), tuple(f[1] for f in found), tuple(f[2] for f in found))
        for name, found in kinds.items()
    }
    return Plan(**parts, whole=served == num_tokens)


class AscendAttentionImpl(AttentionImpl):
    """Computes attention by ``_npu_paged_attention`` and ``npu_fusion_attention``."""

    def update_cache(
        self, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata
    ) -> None:
        """Write the step's keys and values to their slots; padding behind the tokens is left out."""
        # Where lengths are on the host, so is the end of the tokens: the operator gets no padding. That it skips slots
        # below 0 is how it is used elsewhere, and not documented.
        count = metadata.num_tokens if metadata.query_lens is None else sum(metadata.query_lens)
        slots = metadata.slot_mapping[:count].to(torch.int32)
        if count:
            # As a rule both are views of one projection, and the operator takes dense rows.
            k, v = key[:count].contiguous(), value[:count].contiguous()
            ops.reshape_and_cache_(k, v, key_cache, value_cache, slots)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        metadata: AttentionMetadata,
        output: Tensor,
    ) -> None:
        """Serve decoded tokens, prompts, and prompts behind a cached prefix, each kind in one call."""
        made = self._plan(metadata)
        if not made.whole:
            output.zero_()
        if made.decodes.requests:
            self._decode(query, key_cache, value_cache, metadata, made.decodes, output)
        for part, cached in ((made.prompts, False), (made.continued, True)):
            if part.requests:
                new = _take(query, part)
                k, v = (
                    (_gathered(cache, metadata.block_table, part) for cache in (key_cache, value_cache))
                    if cached
                    else (_take(key, part), _take(value, part))
                )
                query_ends = list(accumulate(end - start for start, end in part.rows))
                key_ends = list(accumulate(part.lengths))
                _put(output, part, ops.causal_attention(new, k, v, self.spec.scale, query_ends, key_ends))

    def _plan(self, metadata: AttentionMetadata) -> Plan:
        new, past = metadata.query_lens, metadata.context_lens
        if new is None or past is None:  # not known on the host: the device is waited for
            return plan(metadata.query_start_loc.tolist(), metadata.seq_lens.tolist(), metadata.num_tokens)
        lengths = [a + b for a, b in zip(new, past, strict=True)]
        return plan([0, *accumulate(new)], lengths, metadata.num_tokens)

    def _decode(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        metadata: AttentionMetadata,
        part: Part,
        output: Tensor,
    ) -> None:
        table = metadata.block_table
        if part.requests != tuple(range(len(table))):
            chosen = torch.tensor(part.requests, device=table.device)
            table = table.index_select(0, chosen)
        lengths = torch.tensor(part.lengths, dtype=torch.int32)
        new = _take(query, part).contiguous()
        out = output[part.rows[0][0] : part.rows[-1][1]] if part.adjacent else torch.empty_like(new)
        ops.paged_attention_(new, key_cache, value_cache, self.spec.scale, table.contiguous(), lengths, out)
        if not part.adjacent:
            _put(output, part, out)


class AscendAttentionBackend(AttentionBackend):
    """Causal attention in 16 bits over blocks of 16 to 128 positions."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", "float16", "bfloat16"]

    @staticmethod
    def get_name() -> str:
        """Return its name."""
        return NAME

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl]:
        """Return what computes."""
        return AscendAttentionImpl

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[int]:  # type: ignore[override] # a list of numbers alone
        """Return the block sizes that it takes."""
        return list(limits.BLOCK_SIZES)

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        """Return whether paged attention takes heads of this size."""
        return not limits.refuse_paged_head(head_size)

    @classmethod
    def supports_combination(
        cls, config: AttentionSelectorConfig, device_capability: DeviceCapability | None
    ) -> str | None:
        """Return why the blocks do not suit the heads, or paged attention this chip, or None."""
        if chip().startswith(OTHER_LAYOUT):
            return f"caches of {chip()} have another layout"
        return limits.refuse_block(config.block_size or 1, config.head_size) or None

    @classmethod
    def why_not_here(cls, device_type: str) -> str | None:
        """Return why it does not run on devices of this type, or None."""
        return None if device_type == DEVICE else f"it runs on {DEVICE}, and tensors are on {device_type}"


def _take(x: Tensor, part: Part) -> Tensor:
    """Return the rows of a part's requests, one behind the other; a view where they lie so."""
    if part.adjacent:
        return x[part.rows[0][0] : part.rows[-1][1]]
    return torch.cat([x[start:end] for start, end in part.rows])


def _put(output: Tensor, part: Part, made: Tensor) -> None:
    """Write rows that lie one behind the other to those of a part's requests."""
    if part.adjacent:
        output[part.rows[0][0] : part.rows[-1][1]] = made
        return
    at = 0
    for start, end in part.rows:
        output[start:end] = made[at : at + end - start]
        at += end - start


def _gathered(cache: Tensor, block_table: Tensor, part: Part) -> Tensor:
    """Return the cached rows of a part's requests, one behind the other."""
    size, rows = cache.shape[1], cache.flatten(0, 1)
    slots = []
    for request, length in zip(part.requests, part.lengths, strict=True):
        positions = torch.arange(length, device=cache.device)
        slots.append(block_table[request].long().index_select(0, positions // size) * size + positions % size)
    return rows.index_select(0, torch.cat(slots))
