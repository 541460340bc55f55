"""The tensors of one step, made on the host and sent to the device in one copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from opdock.nn.attention.metadata import AttentionMetadata, slots_of
from opdock.nn.batch.request import Part


@dataclass(frozen=True, eq=False)
class StepInputs:
    """What a forward takes.

    Args:
        input_ids: (num_tokens,) int64.
        positions: (num_tokens,) int64.
        metadata: for the attention layers.
        rows: (samples,) int64, the tokens whose logits are wanted, or None for all.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    metadata: AttentionMetadata
    rows: torch.Tensor | None


def step_inputs(
    parts: Sequence[Part], block_size: int, device: torch.device, *, longest: int | None = None
) -> StepInputs:
    """Return the inputs of a step, whose tokens are all known on the host.

    Args:
        parts: of the requests.
        block_size: positions of a block.
        device: of the model.
        longest: what kernels are told as the most positions of a request, whole blocks; None: those of this step.
    """
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    starts, rows = [0], []
    for part in parts:
        ids += part.request.tokens[part.start : part.end]
        positions += range(part.start, part.end)
        slots += slots_of(part.request.blocks, part.start, part.end, block_size)
        starts.append(len(ids))
        if part.samples:
            rows.append(len(ids) - 1)
    width = longest // block_size if longest else max(len(p.request.blocks) for p in parts)
    longs = [torch.tensor(numbers, dtype=torch.int64) for numbers in (ids, positions, slots, rows)]
    ints = [
        torch.tensor(starts, dtype=torch.int32),
        torch.tensor([p.end for p in parts], dtype=torch.int32),
        block_table([p.request.blocks for p in parts], width),
    ]
    sent = send(longs, ints, device)
    metadata = AttentionMetadata(
        query_start_loc=sent[4],
        seq_lens=sent[5],
        block_table=sent[6],
        slot_mapping=sent[2],
        num_tokens=len(ids),
        max_query_len=max(p.count for p in parts),
        max_seq_len=longest or max(p.end for p in parts),
        query_lens=tuple(p.count for p in parts),
        context_lens=tuple(p.start for p in parts),
    )
    return StepInputs(sent[0], sent[1], metadata, None if len(rows) == len(ids) else sent[3])


def block_table(blocks: Sequence[Sequence[int]], width: int) -> torch.Tensor:
    """Return the blocks of each request, (requests, width) int32, filled up with zeros."""
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in blocks], dtype=torch.int32)


def send(longs: Sequence[torch.Tensor], ints: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Return copies on the device, int64 ones first, through one transfer; on the CPU the tensors themselves.

    Each begins at a multiple of 16 bytes: kernels are compiled for pointers that do, and again for those that do not.
    """
    if device.type == "cpu":
        return [*longs, *ints]
    tensors = (*longs, *ints)
    words = [t.numel() * t.element_size() // 4 for t in tensors]
    packed = torch.empty(sum(-(-n // 4) * 4 for n in words), dtype=torch.int32, pin_memory=True)
    places, at = [], 0
    for tensor, count in zip(tensors, words, strict=True):
        places.append(at)
        packed[at : at + count] = tensor.reshape(-1).view(torch.int32)
        at += -(-count // 4) * 4
    there = packed.to(device, non_blocking=True)
    return [
        there[at : at + count].view(tensor.dtype).view(tensor.shape)
        for tensor, count, at in zip(tensors, words, places, strict=True)
    ]
