"""``CUDA_VISIBLE_DEVICES``: which of the GPUs that NVML knows CUDA counts, and in which order. Pure functions.

CUDA's rules, where its programming guide and the driver agree:

- unset: all GPUs; empty: none;
- a list of numbers, each read up to its first character that is no digit, or a list of names (``GPU-...`` or
  ``MIG-...``), in capitals or not, each cut short as far as it stays unique, and what follows 36 characters of one is
  not read; what the value starts with says which; a GPU's UUID behind ``MIG-`` names that GPU;
- the list ends at the first entry that names no GPU; an entry that repeats another hides all of them;
- a GPU in MIG mode stands for its first MIG device, and a process sees one MIG device, and then no other GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from opdock_cuda.nvml import Facts

VARIABLE = "CUDA_VISIBLE_DEVICES"
"""GPUs that the process may use: indices or UUIDs, separated by commas. Unset: all. Empty: none. CUDA reads
it up to the first entry that names no GPU. Example: ``0,2``."""

ORDER = "CUDA_DEVICE_ORDER"
"""``PCI_BUS_ID``: indices follow the PCI bus, as NVML's do. Unset: CUDA puts the fastest GPU first."""

UUID = 36
"""Characters of a UUID behind ``GPU-`` or ``MIG-``."""


def select(value: str | None, gpus: Sequence[Facts]) -> tuple[Facts, ...]:
    """Return the devices that CUDA counts, in its order.

    Args:
        value: of ``CUDA_VISIBLE_DEVICES``, None when it is unset.
        gpus: those in the machine, hidden ones too, in NVML's order.
    """
    if value is None:
        return _as_cuda_counts(gpus)
    if value.startswith("MIG-"):
        return _as_cuda_counts(_listed(value, lambda entry: _instance(entry, gpus)))
    if value.startswith("GPU-"):
        return _as_cuda_counts(_listed(value, lambda entry: _named(entry, gpus)))
    return _as_cuda_counts(_listed(value, lambda entry: _numbered(entry, gpus)))


def hides_all(value: str | None, gpus: Sequence[Facts]) -> str:
    """Return why CUDA counts none of ``gpus``, "" where it counts one."""
    if select(value, gpus):
        return ""
    if value is not None and not _listed(value, lambda entry: _any_kind(entry, gpus)):
        return f"{VARIABLE}={value!r} hides all of them{_why(value, gpus)}"
    return "MIG mode is on and no MIG device is made"


def _why(value: str, gpus: Sequence[Facts]) -> str:
    first = value.partition(",")[0]
    if not value.strip():
        return ""
    return ": it repeats an entry" if _any_kind(first, gpus) is not None else f": {first!r} names no GPU here"


def _listed(value: str, find: Callable[[str], Facts | None]) -> list[Facts]:
    """Return what the entries name: up to the first that names nothing, and nothing where one is repeated."""
    found: list[Facts] = []
    for entry in value.split(","):
        device = find(entry)
        if device is None:
            break
        if any(device is other for other in found):
            return []
        found.append(device)
    return found


def _any_kind(entry: str, gpus: Sequence[Facts]) -> Facts | None:
    kind = {"MIG-": _instance, "GPU-": _named}.get(entry[:4], _numbered)
    return kind(entry, gpus)


def _numbered(entry: str, gpus: Sequence[Facts]) -> Facts | None:
    found = re.match(r"\s*([+-]?[0-9]+)", entry)
    return gpus[int(found[1])] if found and 0 <= int(found[1]) < len(gpus) else None


def _named(entry: str, gpus: Sequence[Facts]) -> Facts | None:
    """Return the GPU of a name; one whose UUID is not known may be meant by any."""
    matches = [gpu for gpu in gpus if entry.startswith("GPU-") and (not gpu.uuid or _begins(gpu.uuid, entry))]
    return matches[0] if len(matches) == 1 else None


def _instance(entry: str, gpus: Sequence[Facts]) -> Facts | None:
    """Return the MIG device of a name of either kind: ``MIG-<its UUID>``, ``MIG-<UUID of the GPU>/1/0``."""
    named = [
        device
        for gpu in gpus
        for device in (gpu, *gpu.instances)
        if device.place == entry or _begins(device.uuid, entry)
    ]
    return named[0] if entry.startswith("MIG-") and len(named) == 1 else None


def _begins(uuid: str, entry: str) -> bool:
    """Return whether an entry's UUID is the first part, at least one character, of this one."""
    asked = entry[4 : 4 + UUID].lower()
    return asked != "" and uuid[4:].lower().startswith(asked)


def _as_cuda_counts(picked: Sequence[Facts]) -> tuple[Facts, ...]:
    parts = [part for device in picked for part in (device.instances[:1] if device.mig else (device,))]
    instances = tuple(part for part in parts if part.place)
    return instances[:1] or tuple(parts)
