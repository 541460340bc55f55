"""Which GPUs the process may use: three variables, read as ROCm reads them. Pure functions.

``ROCR_VISIBLE_DEVICES`` hides GPUs from the runtime below HIP, by number or UUID. ``HIP_VISIBLE_DEVICES`` hides some of
those that are left, which it counts from 0. ``CUDA_VISIBLE_DEVICES`` is the same under another name, read where the
former is not set. A value that contradicts another one is an error: each reader of the two would use other GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opdock.errors import PlatformError
from opdock_rocm.gpus import Facts

HIP, CUDA, ROCR = "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"

VARIABLE = HIP
"""GPUs that the process may use: numbers or UUIDs, separated by commas. Unset: all. Example: ``0,2``."""


def select(environ: Mapping[str, str], gpus: Sequence[Facts]) -> tuple[Facts, ...]:
    """Return the GPUs that HIP counts, in its order.

    Args:
        environ: the environment variables.
        gpus: those in the machine, hidden ones too, in HIP's order.

    Raises: PlatformError where two of the variables contradict one another.
    """
    left = _listed(environ.get(ROCR), gpus)
    name = variable(environ)
    found = _listed(environ.get(name), left)
    if not found and left and ROCR in environ and environ.get(name, "").strip():
        raise PlatformError(
            f"{ROCR}={environ[ROCR]!r} and {name}={environ[name]!r} together hide every GPU.",
            why=f"{name} counts the {len(left)} that {ROCR} leaves, from 0.",
            remedy=f"unset one of them, or set {name}={','.join(map(str, range(len(left))))}.",
        )
    return found


def variable(environ: Mapping[str, str]) -> str:
    """Return the variable that HIP reads.

    Raises: PlatformError where HIP's and CUDA's are set and name other GPUs.
    """
    if HIP in environ and CUDA in environ and _entries(environ[HIP]) != _entries(environ[CUDA]):
        raise PlatformError(
            f"{HIP}={environ[HIP]!r} and {CUDA}={environ[CUDA]!r} contradict one another.",
            why="HIP reads the first and other libraries the second: they would use different GPUs.",
            remedy=f"unset {CUDA}, or give both one value.",
        )
    return CUDA if CUDA in environ and HIP not in environ else HIP


def hides_all(environ: Mapping[str, str], gpus: Sequence[Facts]) -> str:
    """Return why HIP counts none of ``gpus``, "" where it counts one; raises as ``select``."""
    if not gpus or select(environ, gpus):
        return ""
    name = variable(environ)
    first = ROCR if not _listed(environ.get(ROCR), gpus) else name
    return f"{first}={environ.get(first, '')!r} hides all of them"


def _listed(value: str | None, gpus: Sequence[Facts]) -> tuple[Facts, ...]:
    """Return what the entries name, up to the first that names nothing; nothing where one is repeated."""
    if value is None:
        return tuple(gpus)
    found: list[int] = []
    for entry in _entries(value):
        index = _index(entry, gpus)
        if index is None:
            break
        if index in found:
            return ()
        found.append(index)
    return tuple(gpus[index] for index in found)


def _index(entry: str, gpus: Sequence[Facts]) -> int | None:
    if entry.isdigit():
        return int(entry) if int(entry) < len(gpus) else None
    uuids = [i for i, facts in enumerate(gpus) if facts.uuid and facts.uuid.lower() == entry.lower()]
    return uuids[0] if len(uuids) == 1 else None


def _entries(value: str) -> list[str]:
    return [entry.strip() for entry in value.split(",")]
