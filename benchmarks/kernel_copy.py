"""The ceiling: how long a kernel needs that only moves the bytes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from gpu_timing import graph_time, sets_for

CONFIGURATIONS = ((1024, 4), (2048, 4), (2048, 8), (4096, 8), (8192, 8), (8192, 16))
"""Elements of a program, and its warps."""


@triton.jit
def _copy(x, y, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, N803
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < count), mask=i < count)


@functools.cache
def copy_time(moved: float, repeats: int = 1) -> float:
    """Return the microseconds to read one half of ``moved`` bytes and to write the other half; see ``graph_time``."""
    count = int(moved) // 4
    made = [torch.randn(count, device="cuda").bfloat16() for _ in range(sets_for(moved))]
    pairs = [(x, torch.empty_like(x)) for x in made]

    def call(x: torch.Tensor, y: torch.Tensor, block: int, warps: int) -> Callable[[], Any]:
        return lambda: _copy[(triton.cdiv(count, block),)](x, y, count, BLOCK=block, num_warps=warps)

    return min(
        graph_time([call(x, y, block, warps) for x, y in pairs], repeats=repeats) for block, warps in CONFIGURATIONS
    )
