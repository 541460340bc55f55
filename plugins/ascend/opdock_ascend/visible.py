"""``ASCEND_RT_VISIBLE_DEVICES``: which NPUs CANN's runtime lets the process see. Pure functions."""

from __future__ import annotations

VARIABLE = "ASCEND_RT_VISIBLE_DEVICES"
"""NPUs that the process may use: numbers, separated by commas. Unset: all. Empty: none. The runtime reads it itself and
counts the devices anew, from 0. Example: ``0,2``."""


def hides_all(value: str | None) -> str:
    """Return why the variable hides every NPU, "" where it need not: its first entry is no number from 0."""
    if value is None:
        return ""
    first = value.split(",")[0].strip()
    return "" if first.isdigit() else f"{VARIABLE}={value!r} hides all of them"
