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
    """What is known about one GPU, or about one MIG device, a part of a GPU that CUDA counts as a device.

    Args:
        name: marketing name, for example ``NVIDIA H200``; "" for a GPU about which NVML cannot tell.
        uuid: ``GPU-...`` or ``MIG-...``; "" where it is not known.
        total_memory: bytes; 0 where NVML does not know it, as on GPUs that share the host's memory.
        capability: compute capability, such as (9, 0).
        mig: whether MIG mode is on, so that only parts of the GPU can be used.
        instances: its MIG devices.
        place: of a MIG device: ``MIG-<UUID of the GPU>/<GPU instance>/<compute instance>``, its older name; else "".
    """

    name: str
    uuid: str
    total_memory: int
    capability: tuple[int, int]
    mig: bool = False
    instances: tuple[Facts, ...] = ()
    place: str = ""


def unknown() -> Facts:
    """Return a GPU that is counted, and about which NVML cannot tell."""
    return Facts("", "", 0, (0, 0))


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


def all_facts() -> list[Facts]:
    """Return the facts about every GPU in the machine, hidden ones too, in the order of the PCI bus.

    A GPU that does not answer keeps its place, without a name.

    Raises: Failure where none answers.
    """
    failures: list[Exception] = []

    def facts_of(nvml: Any, index: int) -> Facts:
        try:
            return _facts(nvml, nvml.nvmlDeviceGetHandleByIndex(index))
        except nvml.NVMLError as err:
            failures.append(err)
            return unknown()

    with opened() as nvml:
        found = [facts_of(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
        if failures and len(failures) == len(found):
            raise failures[0]
        return found


def _facts(nvml: Any, gpu: Any) -> Facts:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(gpu)
    uuid = _text(nvml.nvmlDeviceGetUUID(gpu))
    mig = _mig_is_on(nvml, gpu)
    return Facts(
        name=_text(nvml.nvmlDeviceGetName(gpu)),
        uuid=uuid,
        total_memory=_memory(nvml, gpu),
        capability=(int(major), int(minor)),
        mig=mig,
        instances=tuple(_instances(nvml, gpu, uuid, (int(major), int(minor)))) if mig else (),
    )


def _instances(nvml: Any, gpu: Any, uuid: str, capability: tuple[int, int]) -> Iterator[Facts]:
    for i in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, i)
        except nvml.NVMLError:  # no part has this number
            continue
        ids = nvml.nvmlDeviceGetGpuInstanceId(part), nvml.nvmlDeviceGetComputeInstanceId(part)
        yield Facts(
            name=_text(nvml.nvmlDeviceGetName(part)),
            uuid=_text(nvml.nvmlDeviceGetUUID(part)),
            total_memory=_memory(nvml, part),
            capability=capability,
            place=f"MIG-{uuid}/{ids[0]}/{ids[1]}",
        )


def _mig_is_on(nvml: Any, gpu: Any) -> bool:
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(gpu)
    except nvml.NVMLError:  # most GPUs have no such mode
        return False
    return bool(current)


def _memory(nvml: Any, device: Any) -> int:
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(device).total)
    except nvml.NVMLError:
        return 0


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # older releases return bytes
