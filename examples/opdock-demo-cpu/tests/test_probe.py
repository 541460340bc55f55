"""The probe: when the package is chosen, and what it says when it is not."""

from __future__ import annotations

import pytest

from opdock_demo_cpu.probe import judge


@pytest.mark.parametrize("text", [None, "", "0"])
def test_nothing_is_plugged_in_by_default(text: str | None) -> None:
    """Installing the package changes nothing."""
    environ = {} if text is None else {"DEMO_CPU_DEVICES": text}
    reason = judge(environ)
    assert reason == "no demo_cpu device: DEMO_CPU_DEVICES=1 plugs a simulated one in"


def test_one_device_can_be_plugged_in() -> None:
    """And nothing else."""
    assert judge({"DEMO_CPU_DEVICES": "1"}) is None
    reason = judge({"DEMO_CPU_DEVICES": "two"})
    assert reason == "DEMO_CPU_DEVICES is 'two', expected 0 or 1: there is one CPU"
