"""``CUDA_VISIBLE_DEVICES``: from the number that torch counts to the GPU that NVML knows. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

VARIABLE = "CUDA_VISIBLE_DEVICES"
"""GPUs that the process may use: indices or UUIDs, separated by commas. Unset: all. Empty: none. CUDA reads
it up to the first entry that names no GPU. Example: ``0,2``."""

ORDER = "CUDA_DEVICE_ORDER"
"""``PCI_BUS_ID``: indices follow the PCI bus, as NVML's do. Unset: CUDA puts the fastest GPU first."""


def hides_all(value: str | None, devices: int) -> str:
    """Return why the variable hides every one of ``devices`` GPUs, "" where it does not.

    Its first entry decides: CUDA uses nothing from the first entry on that names no GPU.
    """
    first = None if value is None else value.split(",")[0].strip()
    if first is None or first.startswith(("GPU-", "MIG-")) or (first.isdigit() and int(first) < devices):
        return ""
    return f"{VARIABLE}={value!r} hides all of them"


def to_nvml(device_id: int, value: str | None, uuids: Sequence[str]) -> int | None:
    """Return the index in ``uuids`` of the GPU that torch counts as ``device_id``.

    Args:
        device_id: torch's number, from 0.
        value: ``CUDA_VISIBLE_DEVICES``, None when it is unset.
        uuids: of the GPUs that NVML sees, in its order.

    Returns: None where it takes CUDA to tell (a MIG instance, an ambiguous UUID, no such device).
    """
    if value is None:
        return device_id if 0 <= device_id < len(uuids) else None
    entries: list[int] = []
    for entry in value.split(","):
        found = _index(entry.strip(), uuids)
        if found is None or found in entries:
            break  # CUDA stops there too
        entries.append(found)
    return entries[device_id] if 0 <= device_id < len(entries) else None


def _index(entry: str, uuids: Sequence[str]) -> int | None:
    if entry.isdigit():
        return int(entry) if int(entry) < len(uuids) else None
    matches = [i for i, uuid in enumerate(uuids) if entry.startswith("GPU-") and uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None
