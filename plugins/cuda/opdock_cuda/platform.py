"""The platform of NVIDIA GPUs."""

from __future__ import annotations

import functools
import logging
import os
import platform as host
from typing import TYPE_CHECKING, Any

from opdock.errors import UnsupportedError
from opdock.platforms.interface import DeviceCapability, Platform, PlatformEnum
from opdock_cuda import nvml, visible

if TYPE_CHECKING:
    import torch

    from opdock import IrOpPriorityConfig, OpdockConfig

_log = logging.getLogger("opdock.cuda")

FP8_CAPABILITY = (8, 9)
"""The first compute capability whose tensor cores multiply fp8."""


class CudaPlatform(Platform):
    """NVIDIA GPUs. Facts come from NVML, which needs no CUDA context, or else from torch."""

    _enum = PlatformEnum.CUDA
    device_name = "cuda"
    device_type = "cuda"
    dispatch_key = "CUDA"
    dist_backend = "nccl"
    device_control_env_var = visible.VARIABLE
    api_version = 1

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        """The dtypes that models may run in on device 0; the first is the default."""
        import torch

        return [getattr(torch, name) for name in dtype_names(self.get_device_capability())]

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> DeviceCapability | None:
        """Return the compute capability, for example (9, 0)."""
        return DeviceCapability(*_facts(device_id).capability)

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        """Return the marketing name, for example ``NVIDIA H200``."""
        return _facts(device_id).name

    @classmethod
    def get_device_uuid(cls, device_id: int = 0) -> str:
        """Return the UUID, ``GPU-...``."""
        return _facts(device_id).uuid

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """Return the memory of a device in bytes; asks torch, which initialises CUDA, where NVML does not know."""
        return _facts(device_id).total_memory or _read_torch(device_id).total_memory

    @classmethod
    def get_current_memory_usage(cls, device: Any = None) -> float:
        """Return the bytes that torch's tensors take on ``device``."""
        import torch

        return float(torch.cuda.memory_allocated(device))

    @classmethod
    def supports_fp8(cls) -> bool:
        """Return whether the tensor cores multiply fp8: from capability 8.9 on."""
        return cls.has_device_capability(FP8_CAPABILITY)

    @classmethod
    def check_if_supports_dtype(cls, dtype: Any) -> None:
        """Raise UnsupportedError if device 0 runs no models in ``dtype``."""
        capability = cls.get_device_capability()
        name = str(dtype).removeprefix("torch.")
        names = dtype_names(capability)
        if name not in names:
            version = capability.as_version_str() if capability else "unknown"
            raise UnsupportedError(
                f"{name} does not run on {cls.get_device_name()}.",
                why=f"Its compute capability is {version}, which runs {', '.join(names)}.",
                remedy=f"use dtype {names[0]}.",
            )

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:
        """Return the number of streaming multiprocessors; initialises CUDA."""
        import torch

        return int(torch.cuda.get_device_properties(device_id).multi_processor_count)

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        """Return whether host memory can be pinned: everywhere but under WSL."""
        return "microsoft" not in host.uname().release.lower()

    @classmethod
    def is_integrated_gpu(cls, device_id: int = 0) -> bool:
        """Return whether the device shares the host's memory; initialises CUDA."""
        import torch

        return bool(torch.cuda.get_device_properties(device_id).is_integrated)

    @classmethod
    def support_static_graph_mode(cls) -> bool:
        """Return True: CUDA graphs."""
        return True

    @classmethod
    def import_kernels(cls) -> None:
        """Load the kernels where they are built and fit; without them native definitions serve."""
        from opdock_cuda import library

        reason = library.why_not()
        if reason:
            _log.info("No CUDA kernels: %s.", reason)

    @classmethod
    def import_ir_kernels(cls) -> None:
        """Register the providers named ``cuda``, with their tolerances, and those named ``triton``."""
        from opdock_cuda import providers, triton_providers  # noqa: F401

    @classmethod
    def register_oot(cls) -> None:
        """Register the attention backend ``CUDA_ATTN``."""
        from opdock_cuda import attention_choice

        attention_choice.register()

    @classmethod
    def get_attn_backend_cls(
        cls, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None
    ) -> str:
        """Return the path of ``CUDA_ATTN`` where it fits, or is asked for."""
        from opdock_cuda import attention_choice

        return attention_choice.choose(selected_backend, attn_selector_config, cls.get_device_capability)

    @classmethod
    def get_default_ir_op_priority(cls, config: OpdockConfig) -> IrOpPriorityConfig:
        """Return CUDA, Triton, native, in this order, but for what Inductor does as well."""
        from opdock_cuda.priorities import default_priority

        return default_priority(inductor=config.compilation_config.uses_inductor)

    @classmethod
    def set_device(cls, device: Any) -> None:
        """Make ``device`` the current one, and create its CUDA context."""
        import torch

        torch.cuda.set_device(device)

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        """Seed the generators of all GPUs."""
        import torch

        torch.cuda.manual_seed_all(seed)

    @classmethod
    def log_warnings(cls) -> None:
        """Warn where the GPUs differ and CUDA may count them in another order than NVML."""
        if os.environ.get(visible.ORDER) == "PCI_BUS_ID":
            return
        try:
            names = {facts.name for facts in nvml.all_facts() if facts.name}
        except nvml.Failure:
            return
        if len(names) > 1:
            _log.warning(
                "The GPUs differ (%s): set %s=PCI_BUS_ID, or facts may be another GPU's than the one used.",
                ", ".join(sorted(names)),
                visible.ORDER,
            )


def dtype_names(capability: tuple[int, int] | None) -> list[str]:
    """Return the names of the dtypes that models may run in, the default first.

    Args:
        capability: the compute capability, None where it is not known.
    """
    if capability is not None and capability >= (8, 0):
        return ["bfloat16", "float16", "float32"]
    if capability is not None and capability >= (6, 0):
        return ["float16", "float32"]
    return ["float32"]


def _facts(device_id: int) -> nvml.Facts:
    return _read(device_id, os.environ.get(visible.VARIABLE))


@functools.cache
def _read(device_id: int, visible_devices: str | None) -> nvml.Facts:
    try:
        found = nvml.all_facts()
        devices = visible.select(visible_devices, found)
        if 0 <= device_id < len(devices) and devices[device_id].name:
            return devices[device_id]
    except nvml.Failure as failure:
        _log.debug("NVML cannot tell about device %d: %s", device_id, failure)
    return _read_torch(device_id)


def _read_torch(device_id: int) -> nvml.Facts:
    """Read from torch, which initialises CUDA: where NVML cannot tell, as on a Jetson."""
    import torch

    found = torch.cuda.get_device_properties(device_id)
    uuid = f"GPU-{found.uuid}" if hasattr(found, "uuid") else ""
    return nvml.Facts(found.name, uuid, int(found.total_memory), (found.major, found.minor))
