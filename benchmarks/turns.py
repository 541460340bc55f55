"""Timing the sides of a comparison in turns, so that neither the clock's drift nor who comes first decides."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import torch

ROUNDS = 30
"""How often each side has its turn."""


def order(names: Sequence[str], number: int) -> list[str]:
    """Return who follows whom in a round: each side comes first, last, and behind either neighbour, equally often."""
    start = number // 2 % len(names)
    turned = [*names[start:], *names[:start]]
    return turned[::-1] if number % 2 else turned


def in_turns(sides: Mapping[str, Sequence[Callable[[], object]]], *, rounds: int = ROUNDS) -> dict[str, float]:
    """Return the microseconds of one call of each side: the median over its turns.

    Args:
        sides: calls by name, one for each set of buffers. The calls of a side are captured in a graph, and a turn is
            one replay of it.
        rounds: turns of each side.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for calls in sides.values():
            for call in [*calls] * 3:
                call()
    torch.cuda.current_stream().wait_stream(stream)
    graphs, kept = {}, []
    for name, calls in sides.items():
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name], stream=stream):
            kept.append([call() for call in calls])  # so that no result takes another's memory
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in order(list(sides), number):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graphs[name].replay()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end) * 1e3 / len(sides[name]))
    del kept
    return {name: statistics.median(found) for name, found in times.items()}
