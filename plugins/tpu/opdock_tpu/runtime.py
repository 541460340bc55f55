"""Chips and libtpu, looked at in a process of its own: a driver may hang, and a library may crash.

The child reads which chips are on the PCI bus, and opens libtpu. No client is made of it, so no chip is taken: a TPU
belongs to one process at a time, and the one that asks may fork.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opdock.platforms import child

TIMEOUT = 10.0
"""Seconds that the child has; on a healthy machine it takes a tenth of one."""

BUS = "/sys/bus/pci/devices"

GENERATIONS: Mapping[str, str] = {
    "0x0027": "v3",
    "0x005e": "v4",
    "0x0062": "v5p",
    "0x0063": "v5e",
    "0x006f": "v6e",
    "0x0076": "7x",
}
"""Generations of TPUs by their PCI device id, of vendor 0x1ae0."""

_CHILD = """
import ctypes, json, os, pathlib, sys
bus, library = sys.argv[2:]
found = []
for vendor in sorted(pathlib.Path(bus).glob("*/vendor")):
    try:
        if vendor.read_text().strip() == "0x1ae0":
            found.append(vendor.with_name("device").read_text().strip())
    except OSError:
        continue
answer = {"devices": found}
if library:
    try:
        ctypes.CDLL(library).GetPjrtApi
    except (OSError, AttributeError) as err:
        answer["missing"] = str(err)
os.write(int(sys.argv[1]), json.dumps(answer).encode() + b"\\n")
os._exit(0)  # a library may hang when it is left, too
"""


@dataclass(frozen=True)
class Answer:
    """What the child found.

    Args:
        chips: TPU chips of this machine; chips of Google that are no TPU are not counted.
        generation: of the chips, such as ``v5e``; "" without any.
        missing: the loader's words, where libtpu cannot be opened; "".
        broken: in words, where the child died or hung; "". Nothing else is known then.
    """

    chips: int = 0
    generation: str = ""
    missing: str = ""
    broken: str = ""


def ask(library: str = "", *, bus: str = BUS, timeout: float = TIMEOUT) -> Answer:
    """Look at the bus, and open ``library`` if one is named; in bounded time, whatever they do.

    Args:
        library: path of libtpu; "": leave it.
        bus: folder with one folder for each PCI device.
        timeout: seconds.
    """
    reply = child.ask(_CHILD, bus, library, timeout=timeout, options=("-I", "-S"))
    return Answer(broken=reply.how) if reply.told is None else read(reply.told)


def read(told: Mapping[str, Any]) -> Answer:
    """Return what the child told."""
    known = [GENERATIONS[device] for device in told["devices"] if device in GENERATIONS]
    return Answer(len(known), known[0] if known else "", str(told.get("missing", "")))


def library_path(environ: Mapping[str, str] = os.environ) -> str:
    """Return the path of libtpu that jax would open, "" if none is installed."""
    named = environ.get("TPU_LIBRARY_PATH")
    if named:
        return named
    spec = importlib.util.find_spec("libtpu")
    return "" if spec is None or spec.origin is None else str(Path(spec.origin).with_name("libtpu.so"))


def has_device_files() -> bool:
    """Return whether the files of a TPU's own driver are there. Newer TPUs use vfio, which other devices use too."""
    return any(Path("/dev").glob("accel[0-9]*"))
