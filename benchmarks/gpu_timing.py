"""Timing kernels on a GPU without the host: many calls over rotated buffers in one CUDA graph."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch

ROTATED_BYTES = 400e6
"""The buffers of all sets together: more than the L2 cache holds."""

MAX_SETS, REPLAYS = 16, 30


def sets_for(bytes_of_one: float) -> int:
    """Return how many sets of buffers to rotate."""
    return max(2, min(MAX_SETS, int(ROTATED_BYTES // max(bytes_of_one, 1)) + 1))


def graph_time(calls: Sequence[Callable[[], object]], *, repeats: int = 1) -> float:
    """Return the microseconds of one call: the median over the replays of a graph of all calls, by their number.

    Args:
        calls: one for each set of buffers; each is run eagerly three times first.
        repeats: how often the sequence is captured, for calls so short that a replay's own cost shows.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            for call in calls:
                call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        kept = [call() for _ in range(repeats) for call in calls]  # so that no result takes another's memory
    times = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    del kept
    return statistics.median(times) / (len(calls) * repeats)


def host_time(call: Callable[[], object], *, calls: int = 2000) -> float:
    """Return the microseconds that the host needs for one call, while the device is kept ahead of nothing to do."""
    import time

    for _ in range(100):
        call()
    torch.cuda.synchronize()
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(calls // 5):
            call()
        best = min(best, (time.perf_counter() - start) / (calls // 5) * 1e6)
        torch.cuda.synchronize()
    return best
