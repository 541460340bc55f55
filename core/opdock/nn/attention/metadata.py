"""What attention must know of a batch of requests of different lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from opdock.errors import ConfigError

PADDING_SLOT = -1
"""The slot of a token whose key and value are not to be kept."""


@dataclass(frozen=True, eq=False)
class AttentionMetadata:
    """One step of a batch: where the new tokens of each request lie, and where its cache does.

    Attributes:
        query_start_loc: (requests + 1,) int32; the new tokens of request i are rows
            query_start_loc[i] to query_start_loc[i + 1] of the step's tokens.
        seq_lens: (requests,) int32, positions of each request after this step, new ones included. 0 is a request
            that is not there: its rows, if any, come out as zeros.
        block_table: (requests, blocks) int32; position p of request i lies in block block_table[i, p // block_size].
            Entries past a request's length are not read.
        slot_mapping: (num_tokens,) int64; the new token's key and value go to this slot, which is
            block * block_size + offset; -1: nowhere.
        num_tokens: rows of query, key and value, padding included.
        max_query_len: at least the most new tokens of any request.
        max_seq_len: at least the longest seq_lens.
        query_lens: the new tokens of each request on the host, where they are known there: a backend may take another
            kernel for prompts without a prefix. None in a step that is captured for later replays.
        context_lens: positions of each request before this step on the host, likewise.
        block_size: positions of a block that the slots were counted with; None: not known.

    All tensors are on the model's device. The tensors may be changed in place between replays of a CUDA graph; the
    numbers may not.
    """

    query_start_loc: Tensor
    seq_lens: Tensor
    block_table: Tensor
    slot_mapping: Tensor
    num_tokens: int
    max_query_len: int
    max_seq_len: int
    query_lens: tuple[int, ...] | None = None
    context_lens: tuple[int, ...] | None = None
    block_size: int | None = None

    @property
    def num_requests(self) -> int:
        """Number of requests."""
        return self.seq_lens.shape[0]

    @classmethod
    def build(
        cls,
        *,
        query_lens: Sequence[int],
        seq_lens: Sequence[int],
        block_tables: Sequence[Sequence[int]],
        block_size: int,
        device: torch.device | str | None = None,
        num_tokens: int | None = None,
        max_blocks: int | None = None,
    ) -> AttentionMetadata:
        """Return the metadata of one step, from numbers on the host.

        Args:
            query_lens: new tokens of each request.
            seq_lens: positions of each request after this step.
            block_tables: blocks of each request, in order of positions.
            block_size: positions of a block.
            device: of the model.
            num_tokens: rows of the step, if there are padding rows behind the tokens.
            max_blocks: columns of the block table; None: as many as needed.

        Raises: ConfigError for a request with more new tokens than positions, a block table too short or with a
            block below 0, and lists of different lengths.
        """
        if block_size < 1 or not len(query_lens) == len(seq_lens) == len(block_tables):
            raise ConfigError(
                f"{len(query_lens)} numbers of new tokens, {len(seq_lens)} lengths and {len(block_tables)} tables of "
                f"blocks of {block_size} positions make no step.",
                remedy="give one of each for every request, and blocks of one position or more.",
            )
        slots: list[int] = []
        for request, (new, total, blocks) in enumerate(zip(query_lens, seq_lens, block_tables, strict=True)):
            check_request_blocks(request, new, total, len(blocks), block_size)
            if blocks and min(blocks) < 0:
                raise ConfigError(
                    f"Request {request} has the block {min(blocks)}.",
                    why="Its keys and values would be taken for padding and go nowhere.",
                    remedy="use the blocks that the allocator gave.",
                )
            slots += slots_of(blocks, total - new, total, block_size)
        rows = len(slots) if num_tokens is None else num_tokens
        if rows < len(slots):
            raise ConfigError(
                f"{len(slots)} new tokens do not fit into num_tokens={rows} rows.",
                remedy=f"use num_tokens={len(slots)} or more.",
            )
        width = max([1, *map(len, block_tables)]) if max_blocks is None else max_blocks
        if any(len(blocks) > width for blocks in block_tables):
            raise ConfigError(f"A block table has more than max_blocks={width} blocks.", remedy="use a larger one.")
        starts = [0]
        for new in query_lens:
            starts.append(starts[-1] + new)
        table = torch.zeros(len(block_tables), width, dtype=torch.int32)
        for row, blocks in zip(table, block_tables, strict=True):
            row[: len(blocks)] = torch.tensor(list(blocks), dtype=torch.int32)
        return cls(
            query_start_loc=torch.tensor(starts, dtype=torch.int32).to(device),
            seq_lens=torch.tensor(list(seq_lens), dtype=torch.int32).to(device),
            block_table=table.to(device),
            slot_mapping=torch.tensor(slots + [PADDING_SLOT] * (rows - len(slots)), dtype=torch.int64).to(device),
            num_tokens=rows,
            max_query_len=max([0, *query_lens]),
            max_seq_len=max([0, *seq_lens]),
            query_lens=tuple(query_lens),
            context_lens=tuple(total - new for new, total in zip(query_lens, seq_lens, strict=True)),
            block_size=block_size,
        )


def slots_of(blocks: Sequence[int], start: int, end: int, block_size: int) -> list[int]:
    """Return the slots of positions ``start`` to ``end`` of a request with these blocks."""
    return [blocks[p // block_size] * block_size + p % block_size for p in range(start, end)]


def check_request_blocks(request: int, new: int, total: int, blocks: int, block_size: int) -> None:
    """Raise ConfigError unless ``blocks`` blocks hold ``total`` positions, of which ``new`` are new."""
    if not 0 <= new <= total:
        raise ConfigError(
            f"Request {request} has {new} new tokens and {total} positions.",
            remedy="give as positions those before the step and the new ones.",
        )
    if total > blocks * block_size:
        raise ConfigError(
            f"The block table of request {request} is too short.",
            why=f"{blocks} blocks of {block_size} hold {blocks * block_size} positions, and there are {total}.",
            remedy=f"allocate {-(-total // block_size)} blocks for it.",
        )
