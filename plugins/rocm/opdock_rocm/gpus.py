"""Facts about AMD GPUs, and what follows from the name of their architecture. Pure functions."""

from __future__ import annotations

import re
from dataclasses import dataclass

_GFX = re.compile(r"gfx(\d+)([0-9a-f])([0-9a-f])")


@dataclass(frozen=True)
class Facts:
    """What is known about one GPU.

    Args:
        name: marketing name, for example ``AMD Instinct MI300X``; "" where it is not known.
        uuid: ``GPU-`` and 16 hexadecimal digits, as ROCm's variables take it; "" where it is not known.
        total_memory: bytes; 0 where it is not known.
        gfx: architecture, such as ``gfx942``; "" where it is not known.
        compute_units: their number; 0 where it is not known.
    """

    name: str = ""
    uuid: str = ""
    total_memory: int = 0
    gfx: str = ""
    compute_units: int = 0


def capability(gfx: str) -> tuple[int, int] | None:
    """Return what torch calls the compute capability, (9, 4) for ``gfx942``; None for a name that is none."""
    found = _GFX.match(gfx)
    return None if found is None else (int(found[1]), int(found[2], 16))


def is_fnuz(gfx: str) -> bool:
    """Return whether its 8-bit floats are those without a negative zero, as on the MI300 series."""
    return gfx.startswith("gfx94")


def multiplies_fp8(gfx: str) -> bool:
    """Return whether its matrix units multiply 8-bit floats: MI300, MI350 and RDNA 4."""
    return gfx.startswith(("gfx94", "gfx95", "gfx120", "gfx125"))


def gfx_of(version: int) -> str:
    """Return the name for a number of the kernel driver: ``gfx90a`` for 90010, "" for 0, which CPUs have."""
    if not version:
        return ""
    major, rest = divmod(version, 10000)
    minor, step = divmod(rest, 100)
    return f"gfx{major}{minor:x}{step:x}"


def in_order(named: tuple[Facts, ...], counted: tuple[Facts, ...]) -> tuple[Facts, ...]:
    """Return ``named`` in the order of ``counted``, if both are the same GPUs; else as they are.

    amdsmi has the better facts and orders by the PCI bus; HIP counts as the kernel driver does.
    """
    by_uuid = {facts.uuid: facts for facts in named if facts.uuid}
    order = [facts.uuid for facts in counted]
    if len(by_uuid) != len(named) or sorted(by_uuid) != sorted(order):
        return named
    return tuple(by_uuid[uuid] for uuid in order)
