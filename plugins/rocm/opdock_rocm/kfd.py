"""What the kernel's driver says of the GPUs in its files: no library is needed, and none is loaded."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from opdock_rocm.gpus import Facts, gfx_of

DEVICE = Path("/dev/kfd")
"""The driver's device file: without it no process computes on an AMD GPU, but under WSL."""

TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")


def why_not(device: Path = DEVICE, may: Callable[[Path, int], bool] = os.access) -> str:
    """Return why this process cannot use the driver, "" where it may.

    Args:
        device: its file.
        may: tells whether a file can be opened in a mode, as ``os.access``.
    """
    if not device.exists():
        return f"no AMD GPU: its driver is not loaded, there is no {device}"
    if not may(device, os.R_OK | os.W_OK):
        return f"an AMD GPU is here, and {device} may not be opened: the user is not in the group render"
    return ""


def all_facts(topology: Path = TOPOLOGY) -> tuple[Facts, ...]:
    """Return the facts about every GPU that this process may see, in HIP's order; none where there is no driver."""
    found = []
    nodes = [path for path in topology.iterdir() if path.name.isdigit()] if topology.is_dir() else []
    for node in sorted(nodes, key=lambda path: int(path.name)):
        values = _read(node / "properties")  # in a container, those of other GPUs cannot be read
        gfx = gfx_of(values.get("gfx_target_version", 0))
        if gfx:
            simds = values.get("simd_per_cu", 0)
            unique = values.get("unique_id", 0)
            found.append(
                Facts(
                    uuid=f"GPU-{unique:016x}" if unique else "",
                    total_memory=_read(node / "mem_banks" / "0" / "properties").get("size_in_bytes", 0),
                    gfx=gfx,
                    compute_units=values.get("simd_count", 0) // simds if simds else 0,
                )
            )
    return tuple(found)


def _read(path: Path) -> dict[str, int]:
    """Return the lines ``name number`` of a file; nothing where it cannot be read."""
    values: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, number = line.partition(" ")
            with contextlib.suppress(ValueError):
                values[name] = int(number)
    return values
