"""The probe: when the package is chosen, and what it says when it is not. Needs no device."""

from __future__ import annotations

import subprocess
import sys

import pytest

from opdock_demo_accel.probe import judge


@pytest.mark.parametrize("text", [None, "", " ", "0"])
def test_nothing_is_plugged_in_by_default(text: str | None) -> None:
    """Installing the package changes nothing."""
    environ = {} if text is None else {"DEMO_ACCEL_DEVICES": text}
    reason = judge(environ, built=True)
    assert reason == "no demo_accel device: DEMO_ACCEL_DEVICES=1 plugs a simulated one in"


@pytest.mark.parametrize("text", ["1", " 2 ", "64"])
def test_a_number_of_devices_plugs_them_in(text: str) -> None:
    """Up to 64."""
    assert judge({"DEMO_ACCEL_DEVICES": text}, built=True) is None


@pytest.mark.parametrize("text", ["yes", "-1", "1.5", "65", "9" * 50, "²", "1,2"])
def test_anything_else_is_told(text: str) -> None:
    """The reason shows what was read."""
    reason = judge({"DEMO_ACCEL_DEVICES": text}, built=True)
    assert reason == f"DEMO_ACCEL_DEVICES is {text!r}, expected a number of devices from 0 to 64"


def test_a_library_that_is_not_built_is_told() -> None:
    """The package installs without a compiler, and declines."""
    reason = judge({"DEMO_ACCEL_DEVICES": "1"}, built=False)
    assert reason is not None and "is not built" in reason


def test_the_probe_imports_no_torch() -> None:
    """Every installed package is probed, in processes that may fork afterwards."""
    code = "import sys, opdock_demo_accel.probe as p; p.probe(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
