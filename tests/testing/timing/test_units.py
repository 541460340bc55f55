"""Figures for people."""

from __future__ import annotations

import pytest

from opdock.testing.timing import units


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0 ns"), (1.5e-9, "1.5 ns"), (12.34e-6, "12.3 µs"), (0.1, "100 ms"), (123.4e-6, "123 µs"), (2.0, "2 s")],
)
def test_times_have_three_digits_and_a_unit(value: float, text: str) -> None:
    assert units.seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(12, "12 B"), (1536, "1.5 KiB"), (1 << 28, "256 MiB"), (1 << 31, "2 GiB")])
def test_sizes_count_in_powers_of_two(value: float, text: str) -> None:
    assert units.size(value) == text


def test_rates_count_in_powers_of_ten() -> None:
    assert units.rate(27.3e9) == "27.3 GB/s"
