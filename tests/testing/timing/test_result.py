"""What a benchmark finds out, as data."""

from __future__ import annotations

import json

import pytest

from opdock.testing.timing.result import DECLINED, TIMED, Bandwidth, Point, ProviderResult, Result, Times


def at(seconds: float) -> Times:
    return Times(seconds, seconds, seconds, 5)


def result(*points: Point, large: Times | None = None) -> Result:
    return Result({"date": "2026-01-01", "command": "opdock bench"}, ("how",), 8000, large, points)


def test_times_are_summed_up_by_median_and_quartiles() -> None:
    """Of 1 to 9, and of one sample alone."""
    times = Times.of([9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    assert (times.q1, times.median, times.q3, times.samples) == (3.0, 5.0, 7.0, 9)
    assert times.spread == pytest.approx(0.8)
    assert Times.of([2.0]) == Times(2.0, 2.0, 2.0, 1)


def test_the_best_copy_of_all_sizes_is_the_whole_bandwidth() -> None:
    """A point of 4,000 bytes copied in 1 s beats the large one of 8,000 in 4 s."""
    found = result(Point("op", 1, 2, "float32", 4000, (), at(1.0)), large=at(4.0))
    assert found.bandwidth() == Bandwidth(4000.0, 4000)
    assert result(large=at(4.0)).bandwidth() == Bandwidth(2000.0, 8000)
    assert result().bandwidth() is None


def test_the_document_holds_the_shares_and_is_json() -> None:
    """Against the best copy, and against native; nothing for what was not timed."""
    providers = (
        ProviderResult("native", "", TIMED, time=at(4.0)),
        ProviderResult("fast", "kernels 1.0", TIMED, time=at(2.0)),
        ProviderResult("other", "kernels 1.0", DECLINED, "too narrow"),
    )
    told = json.loads(json.dumps(result(Point("op", 1, 2, "float32", 4000, providers, at(1.0))).to_dict()))
    assert told["schema"] == "opdock.bench/1" and told["best_bandwidth"]["bytes_per_second"] == 4000.0
    native, fast, other = told["points"][0]["providers"]
    assert (native["bandwidth_fraction"], native["times_native"]) == (0.25, 1.0)
    assert (fast["bandwidth_fraction"], fast["times_native"]) == (0.5, 2.0)
    assert (other["bandwidth_fraction"], other["times_native"], other["reason"]) == (None, None, "too narrow")
