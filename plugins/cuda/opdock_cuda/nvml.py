"""NVML, the driver's own library: facts about the GPUs without a CUDA context.

Each call initialises it and shuts it down again, so that nothing is held across a fork.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from opdock.errors import PlatformError

_ABSENT = ("LIBRARY_NOT_FOUND", "DRIVER_NOT_LOADED", "GPU_NOT_FOUND")


class Failure(Exception):
    """NVML answered with an error.

    ``text`` is its message; ``absent`` tells a machine without a driver from one whose driver is broken.
    """

    def __init__(self, text: str, *, absent: bool = False) -> None:
        super().__init__(text)
        self.text, self.absent = text, absent


@dataclass(frozen=True)
class Facts:
    """What is known about one GPU: its memory is in bytes, its capability a pair such as (9, 0)."""

    name: str
    uuid: str
    total_memory: int
    capability: tuple[int, int]


@contextlib.contextmanager
def opened() -> Iterator[Any]:
    """Initialise NVML and yield the module ``pynvml``; shut it down in the end.

    Raises: Failure for every error of NVML; PlatformError where ``pynvml`` is not installed.
    """
    try:
        import pynvml
    except ModuleNotFoundError as err:
        raise PlatformError(
            "opdock-cuda cannot look for a GPU: the module 'pynvml' is not installed.",
            who="opdock-cuda requires the distribution nvidia-ml-py.",
            remedy="pip install nvidia-ml-py",
        ) from err
    try:
        pynvml.nvmlInit()
        try:
            yield pynvml
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as err:
        codes = [getattr(pynvml, f"NVML_ERROR_{name}", None) for name in _ABSENT]
        raise Failure(str(err), absent=err.value in codes) from err


def count_devices() -> int:
    """Return the number of GPUs in the machine, hidden ones too."""
    with opened() as nvml:
        return int(nvml.nvmlDeviceGetCount())


def all_facts() -> list[Facts]:
    """Return the facts about every GPU in the machine, in the order of the PCI bus."""
    with opened() as nvml:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        return [_facts(nvml, handle) for handle in handles]


def _facts(nvml: Any, handle: Any) -> Facts:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Facts(
        name=_text(nvml.nvmlDeviceGetName(handle)),
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        total_memory=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        capability=(int(major), int(minor)),
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # older releases return bytes
