"""The platform: what opdock asks about the device, and the hooks that bring its kernels."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from opdock import IrOpPriorityConfig, OpdockConfig, Platform, PlatformEnum

from opdock_demo_cpu.probe import DEVICES

if TYPE_CHECKING:
    import torch


class DemoCpuPlatform(Platform):
    """The demo cpu."""

    _enum = PlatformEnum.OOT  # layers bind forward_oot
    device_name = "demo_cpu"
    device_type = "cpu"
    dispatch_key = "CPU"
    api_version = 1
    dist_backend = "gloo"
    device_control_env_var = DEVICES

    @classmethod
    def import_ir_kernels(cls) -> None:
        """Register the providers; called once the platform is chosen."""
        from opdock_demo_cpu import providers  # noqa: F401

    @classmethod
    def register_oot(cls) -> None:
        """Register the replaced layers; called after the providers."""
        from opdock_demo_cpu import layers  # noqa: F401

    @classmethod
    def get_default_ir_op_priority(cls, config: OpdockConfig) -> IrOpPriorityConfig:
        """Return the order in which providers are tried; an op that is not named runs natively."""
        ours = ["demo_cpu", "native"]
        return IrOpPriorityConfig.with_default(["native"], rms_norm=ours)

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        """The dtypes that models may run in; the first is the default."""
        import torch

        return [torch.float32, torch.bfloat16, torch.float16]

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        """Return the marketing name."""
        return "Demo Cpu (simulated)"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """Return the memory in bytes."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        """Return False: there is no device to copy to."""
        return False

    @classmethod
    def set_device(cls, device: Any) -> None:
        """Do nothing: there is one device."""

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        """Seed torch's generator."""
        import torch

        torch.manual_seed(seed)
