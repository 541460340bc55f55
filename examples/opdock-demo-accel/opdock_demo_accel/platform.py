"""The platform: what opdock asks about the device, and the hooks that bring its kernels."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from opdock import IrOpPriorityConfig, OpdockConfig, Platform, PlatformEnum
from opdock.errors import PlatformError

from opdock_demo_accel.probe import DEVICES

if TYPE_CHECKING:
    import torch


class DemoAccelPlatform(Platform):
    """The demo accel."""

    _enum = PlatformEnum.OOT  # layers bind forward_oot
    device_name = "demo_accel"
    device_type = "demo_accel"
    dispatch_key = "PrivateUse1"
    api_version = 1
    dist_backend = "gloo"
    device_control_env_var = DEVICES
    # Inductor makes no code for this device. This backend runs opdock's passes and then the graph, op by op.
    simple_compile_backend = "opdock_eager"

    # -- kernels: called in this order, once the platform is chosen; nothing is registered before

    @classmethod
    def import_kernels(cls) -> None:
        """Load the library: the device and the kernels."""
        from opdock_demo_accel import device

        try:
            device.load()
        except (OSError, RuntimeError) as err:
            raise PlatformError(
                f"the library of {cls.device_name} cannot be loaded",
                why=[
                    str(err.__cause__ or err),
                    "It fits the PyTorch that it was built with: install it again after another PyTorch.",
                    "A process has room for one PrivateUse1 device.",
                ],
            ) from err
        from opdock_demo_accel import kernels  # noqa: F401 - registers what they return for fake tensors

    @classmethod
    def import_ir_kernels(cls) -> None:
        """Register the providers."""
        from opdock_demo_accel import providers  # noqa: F401

    @classmethod
    def register_oot(cls) -> None:
        """Register the replaced layers."""
        from opdock_demo_accel import layers  # noqa: F401

    @classmethod
    def get_default_ir_op_priority(cls, config: OpdockConfig) -> IrOpPriorityConfig:
        """Return the order in which providers are tried; an op that is not named runs natively."""
        ours = ["demo_accel", "native"]
        return IrOpPriorityConfig.with_default(["native"], rms_norm=ours, fused_add_rms_norm=ours)

    # -- facts

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        """The dtypes that models may run in; the first is the default."""
        import torch

        return [torch.float32, torch.bfloat16, torch.float16]

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        """Return the marketing name."""
        return "Demo Accel (simulated)"

    @classmethod
    def get_device_uuid(cls, device_id: int = 0) -> str:
        """Return an id that no other device has."""
        return f"demo_accel-{device_id}"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """Return the memory in bytes: the host's."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        """Return False: nothing is gained by it where the device's memory is the host's."""
        return False

    # -- state

    @classmethod
    def set_device(cls, device: Any) -> None:
        """Make ``device`` this thread's device."""
        import torch

        torch.accelerator.set_device_index(device)

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        """Seed the generator that draws for all devices: the host's."""
        import torch

        torch.manual_seed(seed)
