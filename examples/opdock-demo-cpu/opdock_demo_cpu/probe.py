"""Is there a device? Asked without PyTorch or a driver's initialisation: every installed package is asked."""

from __future__ import annotations

import os
from collections.abc import Mapping

DEVICES = "DEMO_CPU_DEVICES"
"""The environment variable that plugs a simulated device in; a vendor asks the driver's management library."""


def probe() -> str | None:
    """Return None where a device can be used, else why not."""
    return judge(os.environ)


def judge(environ: Mapping[str, str]) -> str | None:
    """Return None where a device can be used, else why not; a pure function, so that tests need no device.

    Args:
        environ: the environment variables.
    """
    text = environ.get(DEVICES, "").strip()
    if text in ("", "0"):
        return f"no demo_cpu device: {DEVICES}=1 plugs a simulated one in"
    return None if text == "1" else f"{DEVICES} is {text!r}, expected 0 or 1: there is one CPU"
