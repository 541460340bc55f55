"""What no kernel can be faster than, measured on the GPU in the same run: an empty kernel, reading, multiplying."""

# ruff: noqa: ANN001, ANN202, N803 - Triton has its own types and habits
# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-not-found"

from __future__ import annotations

import contextlib
import functools
import gc
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import gpu_timing
import shortfall
import torch
import triton
import triton.language as tl
from shortfall import Facts
from torch import Tensor

READ_CUTS = ((16384, 8, 4), (8192, 4, 8))
"""Bytes of a block, warps, and programs for each multiprocessor, of the kernels that read."""


@triton.jit
def _empty(out_ptr):
    """Do nothing."""


@triton.jit
def _read(x_ptr, y_ptr, out_ptr, blocks, more, BLOCK: tl.constexpr):
    """Read blocks of 32-bit words of x, then of y, and keep one bit of them."""
    at = tl.arange(0, BLOCK)
    found = tl.zeros((BLOCK,), tl.int32)
    for block in tl.range(tl.program_id(0), blocks, tl.num_programs(0), num_stages=1, loop_unroll_factor=4):
        found |= tl.load(x_ptr + tl.cast(block, tl.int64) * BLOCK + at)
    for block in tl.range(tl.program_id(0), more, tl.num_programs(0), num_stages=1, loop_unroll_factor=4):
        found |= tl.load(y_ptr + tl.cast(block, tl.int64) * BLOCK + at)
    if tl.xor_sum(found) == 0x12345678:  # not known before it ran, so that nothing is left out
        tl.store(out_ptr, 1)


@triton.jit
def _read_again(x_ptr, out_ptr, blocks, total, BLOCK: tl.constexpr):
    """Read the same blocks of 32-bit words over and over, past the multiprocessor's own cache."""
    at = tl.arange(0, BLOCK)
    found = tl.zeros((BLOCK,), tl.int32)
    for block in tl.range(tl.program_id(0), total, tl.num_programs(0), num_stages=1, loop_unroll_factor=4):
        found |= tl.load(x_ptr + block % blocks * BLOCK + at, cache_modifier=".cg")
    if tl.xor_sum(found) == 0x12345678:
        tl.store(out_ptr, 1)


@functools.cache
def units() -> int:
    """Return the number of multiprocessors."""
    return int(torch.cuda.get_device_properties(0).multi_processor_count)


@functools.cache
def _word() -> Tensor:
    return torch.zeros(1, dtype=torch.int32, device="cuda")


@functools.cache
def launch_time() -> float:
    """Return the microseconds of an empty kernel in a graph of such kernels."""
    word = _word()
    return gpu_timing.graph_time([lambda: _empty[(units(),)](word, num_warps=4)] * 64)


def read_time(sets: Sequence[tuple[Tensor, Tensor]], repeats: int = 1) -> float:
    """Return the microseconds in which both tensors of a set are read, by the fastest of a few kernels.

    Args:
        sets: rotated; dense, and each of a multiple of 16 KiB, or the rest is left out.
        repeats: see ``graph_time``.
    """
    word, best = _word(), float("inf")
    for size, warps, each in READ_CUTS:
        calls = []
        for pair in sets:
            x, y = (tensor.view(-1).view(torch.int32) for tensor in pair)
            blocks, more = x.numel() * 4 // size, y.numel() * 4 // size
            grid = (max(1, min(max(blocks, more), units() * each)),)
            launch = functools.partial(_read[grid], x, y, word, blocks, more, BLOCK=size // 4, num_warps=warps)
            calls.append(launch)
        best = min(best, gpu_timing.graph_time(calls, repeats=repeats))
    return best


@functools.cache
def cache_rate() -> float:
    """Return the bytes for each microsecond that all multiprocessors together load from the L2 cache."""
    size, times, best = 8 << 20, 32, 0.0
    x = torch.zeros(size // 4, dtype=torch.int32, device="cuda")
    for block, warps, each in READ_CUTS:
        blocks, grid = size // block, (units() * each,)
        read = functools.partial(_read_again[grid], x, _word(), blocks, BLOCK=block // 4, num_warps=warps)
        took = [gpu_timing.graph_time([functools.partial(read, total=blocks * n)] * 4) for n in (times, 2 * times)]
        best = max(best, size * times / max(took[1] - took[0], 1e-3))  # without what a launch takes
    return best


@functools.cache
def product_rate(dtype: torch.dtype = torch.bfloat16) -> float:
    """Return the TFLOP/s of torch's product of two 8192 x 8192 matrices."""
    size = 8192
    pairs = [tuple(torch.randn(size, size, device="cuda").to(dtype) for _ in range(2)) for _ in range(2)]
    if dtype == torch.bfloat16:
        calls: list[Callable[[], Tensor]] = [functools.partial(torch.mm, a, b.t()) for a, b in pairs]
    else:
        one = torch.ones((), device="cuda")
        calls = [
            functools.partial(torch._scaled_mm, a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
            for a, b in pairs
        ]
    return 2.0 * size**3 / gpu_timing.graph_time(calls) / 1e6


def launches_of(call: Callable[[], object]) -> int:
    """Return how many kernels a call starts, as the nodes of a graph; 1 where torch cannot tell."""
    call()
    graph = torch.cuda.CUDAGraph()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.dot"
        try:
            graph.enable_debug_mode()
            with torch.cuda.graph(graph):
                call()
            graph.debug_dump(str(path))
            text = path.read_text(encoding="utf-8", errors="replace")
        except (RuntimeError, OSError):
            return 1
    return max(1, len(set(re.findall(r"graph_\d+_node_\d+", text))))


def explain(facts: Callable[[], Facts]) -> tuple[str, dict[str, float]]:
    """Measure around a limit that is missed; returns why, and the times.

    What cannot be measured is said instead: the record of the run is not lost for it.
    """
    try:
        found = facts()
    except Exception as err:  # noqa: BLE001 - see above
        return f"not explained, as measuring the floors failed: {type(err).__name__}: {str(err)[:200]}", {}
    return shortfall.why(found), found.times()


@contextlib.contextmanager
def quiet_collector() -> Iterator[None]:
    """Keep Python's collector from walking over torch's modules at every capture."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
