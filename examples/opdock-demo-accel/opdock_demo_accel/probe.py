"""Is there a device? Asked without PyTorch or a driver's initialisation: every installed package is asked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

DEVICES = "DEMO_ACCEL_DEVICES"
"""The environment variable that plugs simulated devices in; a vendor asks the driver's management library."""

MAX_DEVICES = 64

LIBRARY = Path(__file__).with_name("_C.so")
"""The device and its kernels, built from csrc/ by setup.py."""


def probe() -> str | None:
    """Return None where a device can be used, else why not."""
    return judge(os.environ, built=LIBRARY.is_file())


def judge(environ: Mapping[str, str], *, built: bool) -> str | None:
    """Return None where a device can be used, else why not; a pure function, so that tests need no device.

    Args:
        environ: the environment variables.
        built: whether the library is there.
    """
    text = environ.get(DEVICES, "").strip()
    if text in ("", "0"):
        return f"no demo_accel device: {DEVICES}=1 plugs a simulated one in"
    if not (text.isascii() and text.isdigit() and len(text) < 4 and int(text) <= MAX_DEVICES):
        return f"{DEVICES} is {text!r}, expected a number of devices from 0 to {MAX_DEVICES}"
    if not built:
        return (
            f"{LIBRARY.name} is not built: pip install -v --no-build-isolation shows what the compiler said"
        )
    return None
