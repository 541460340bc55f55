"""Memory: how many bytes an op moves at least, and how fast a copy moves as many."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from opdock.testing.timing.clock import Call

LARGE_CPU, LARGE_DEVICE = 256 << 20, 2 << 30
"""Bytes read and written by the large copy, on the CPU and elsewhere."""


def tensors_in(values: Any) -> Iterable[torch.Tensor]:
    """Yield the tensors among arguments or results, those inside lists and tuples too."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from tensors_in(value)


def bytes_moved(args: Any, results: Any) -> int:
    """Return the bytes of all arguments and all results, each tensor counted once.

    It is the least that an op moves when nothing is in a cache: every argument read once, every result written once.
    """
    return sum(t.numel() * t.element_size() for t in (*tensors_in(args), *tensors_in(results)))


def copying(size: int, device: torch.device) -> tuple[int, Call]:
    """Return a call that copies, and the bytes that it reads and writes in all: ``size``, made even words.

    Args:
        size: bytes read and written together.
        device: where.
    """
    words = max(1, size // 8)  # of 4 bytes, each read once and written once
    source = torch.ones(words, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return 8 * words, lambda: target.copy_(source)


def large_size(device: torch.device) -> int:
    """Return the bytes of the large copy: well over any cache, and at most an eighth of what is free."""
    if device.type == "cpu":
        return LARGE_CPU
    try:
        free, _ = torch.accelerator.get_memory_info(device)
    except (AttributeError, RuntimeError, NotImplementedError):
        free = 8 * LARGE_CPU
    return max(8, min(LARGE_DEVICE, int(free) // 8))
