"""A platform whose device is the CPU under another name."""

from __future__ import annotations

import os

import opdock


def _probe() -> str | None:
    return "ACME_DEVICE says that the device is away" if os.environ.get("ACME_DEVICE") == "away" else None


register = opdock.platform_plugin("opdock_acme.platform:AcmePlatform", probe=_probe)
