"""The date, the machine and the versions behind a figure: no host name, no path."""

from __future__ import annotations

import datetime
import os
import platform as host
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from opdock import __version__

if TYPE_CHECKING:
    from opdock.ir import IrOp


def circumstances(ops: Iterable[IrOp], device: torch.device, command: str) -> dict[str, Any]:
    """Return what a figure is written down with.

    Args:
        ops: the packages that registered their providers are among the versions.
        device: what was measured.
        command: that repeats it.
    """
    owners = {impl.owner.distribution: impl.owner.version for op in ops for impl in op.impls.values() if impl.owner}
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": machine(device),
        "device": device.type,
        "versions": {
            "python": host.python_version(),
            "torch": torch.__version__,
            "opdock": __version__,
            **dict(sorted(owners.items())),
        },
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "command": command,
    }


def machine(device: torch.device) -> str:
    """Return the device's name, and the CPU's."""
    cpu = f"{_cpu()}, {os.cpu_count()} CPUs, {host.system()} {host.machine()}"
    if device.type == "cpu":
        return cpu
    module = getattr(torch, device.type, None)
    try:
        name = str(module.get_device_name(device))  # type: ignore[union-attr]
    except (AttributeError, RuntimeError, TypeError, NotImplementedError):
        name = device.type
    return f"{name}; {cpu}"


def _cpu() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            found = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        found = ""
    return found or host.processor() or "unknown CPU"
