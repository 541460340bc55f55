"""Figures for people."""

from __future__ import annotations


def seconds(value: float) -> str:
    """Return a time of three digits with its unit, for example ``12.3 µs``."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{_three(value / size)} {unit}"
    return f"{_three(value / 1e-9)} ns"


def size(value: float) -> str:
    """Return bytes of three digits with their unit, for example ``1.5 MiB``."""
    for unit, step in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= step:
            return f"{_three(value / step)} {unit}"
    return f"{_three(value)} B"


def rate(value: float) -> str:
    """Return bytes per second, for example ``12.3 GB/s``."""
    return f"{_three(value / 1e9)} GB/s"


def _three(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.3g}"
