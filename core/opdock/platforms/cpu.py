"""The built-in platform: the CPU."""

from __future__ import annotations

import os
from typing import Any

from opdock.platforms.enums import PlatformEnum
from opdock.platforms.interface import Platform


class CpuPlatform(Platform):
    """CPUs, through PyTorch alone."""

    _enum = PlatformEnum.CPU
    device_name = "cpu"
    device_type = "cpu"
    dispatch_key = "CPU"
    dist_backend = "gloo"

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        """Return ``cpu``."""
        return "cpu"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """Return the host's memory in bytes."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:
        """Return the number of CPUs that this process may use."""
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        """Return False: there is no device to copy to."""
        return False

    @classmethod
    def set_device(cls, device: Any) -> None:
        """Do nothing: there is one CPU device."""

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        """Seed torch's CPU generator."""
        import torch

        torch.manual_seed(seed)


def cpu_platform_plugin() -> str:
    """Return the class path: the CPU is always there."""
    return "opdock.platforms.cpu.CpuPlatform"
