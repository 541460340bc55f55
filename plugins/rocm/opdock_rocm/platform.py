"""The platform of AMD GPUs."""

from __future__ import annotations

import functools
import logging
import os
from typing import TYPE_CHECKING, Any

from opdock.errors import UnsupportedError
from opdock.platforms.interface import DeviceCapability, Platform, PlatformEnum
from opdock_rocm import gpus, probe, visible, wsl

if TYPE_CHECKING:
    import torch

    from opdock import IrOpPriorityConfig, OpdockConfig

_log = logging.getLogger("opdock.rocm")

DTYPES = ("bfloat16", "float16", "float32")
"""What models may run in, on every GPU that ROCm supports; the default first."""

QUANTIZATION = ["fp8", "int8_w8a8", "awq", "gptq", "compressed-tensors"]


class RocmPlatform(Platform):
    """AMD GPUs, ``cuda`` devices to torch. Facts come from the driver, without a HIP context, or else from torch."""

    _enum = PlatformEnum.ROCM
    device_name = "rocm"
    device_type = "cuda"
    dispatch_key = "CUDA"
    dist_backend = "nccl"  # torch has RCCL under this name
    device_control_env_var = visible.VARIABLE
    supported_quantization = QUANTIZATION
    ray_device_key = "GPU"
    ray_noset_device_env_vars = [  # noqa: RUF012 - the host's attribute
        "RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES",
        "RAY_EXPERIMENTAL_NOSET_ROCR_VISIBLE_DEVICES",
        "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",
    ]
    api_version = 1

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        """The dtypes that models may run in; the first is the default."""
        import torch

        return [getattr(torch, name) for name in DTYPES]

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> DeviceCapability | None:
        """Return the first two numbers of the architecture, (9, 4) for gfx942, as torch does."""
        found = gpus.capability(cls.get_gfx(device_id))
        return None if found is None else DeviceCapability(*found)

    @classmethod
    def get_gfx(cls, device_id: int = 0) -> str:
        """Return the architecture of a device, for example ``gfx942``; "" where there is no usable GPU."""
        return _facts(device_id).gfx

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        """Return the marketing name, for example ``AMD Instinct MI300X``; asks torch where the driver has none."""
        return _facts(device_id).name or _read_torch(device_id).name

    @classmethod
    def get_device_uuid(cls, device_id: int = 0) -> str:
        """Return the UUID, ``GPU-`` and 16 digits."""
        return _facts(device_id).uuid

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """Return the memory of a device in bytes; asks torch, which initialises HIP, where the driver does not say."""
        return _facts(device_id).total_memory or _read_torch(device_id).total_memory

    @classmethod
    def get_current_memory_usage(cls, device: Any = None) -> float:
        """Return the bytes that torch's tensors take on ``device``."""
        import torch

        return float(torch.cuda.memory_allocated(device))

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:
        """Return the number of compute units."""
        return _facts(device_id).compute_units or _read_torch(device_id).compute_units

    @classmethod
    def supports_fp8(cls) -> bool:
        """Return whether the matrix units of device 0 multiply 8-bit floats."""
        return gpus.multiplies_fp8(cls.get_gfx())

    @classmethod
    def is_fp8_fnuz(cls) -> bool:
        """Return whether the 8-bit floats of device 0 are float8_e4m3fnuz: on gfx942; later ones have float8_e4m3fn."""
        return gpus.is_fnuz(cls.get_gfx())

    @classmethod
    def check_if_supports_dtype(cls, dtype: Any) -> None:
        """Raise UnsupportedError if no model runs in ``dtype``."""
        name = str(dtype).removeprefix("torch.")
        if name not in DTYPES:
            raise UnsupportedError(
                f"{name} does not run on {cls.get_device_name()}.",
                why=f"AMD GPUs run {', '.join(DTYPES)}.",
                remedy=f"use dtype {DTYPES[0]}.",
            )

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        """Return whether host memory can be pinned: everywhere but under WSL."""
        return not wsl.is_wsl()

    @classmethod
    def support_static_graph_mode(cls) -> bool:
        """Return True: HIP graphs."""
        return True

    @classmethod
    def import_kernels(cls) -> None:
        """Load the HIP kernels where they are built and fit; without them Triton's serve."""
        from opdock_rocm import library

        reason = library.why_not()
        if reason:
            _log.info("No HIP kernels: %s.", reason)

    @classmethod
    def import_ir_kernels(cls) -> None:
        """Register the providers named ``hip``, ``aiter`` and ``triton``."""
        from opdock_rocm import aiter_providers, providers, triton_providers  # noqa: F401

    @classmethod
    def register_oot(cls) -> None:
        """Register the attention backend ``ROCM_ATTN`` and the replaced layers."""
        from opdock_rocm import attention_choice, layers  # noqa: F401

        attention_choice.register()

    @classmethod
    def get_attn_backend_cls(
        cls, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None
    ) -> str:
        """Return the path of ``ROCM_ATTN`` where it fits, or is asked for; else the host chooses."""
        from opdock_rocm import attention_choice

        return attention_choice.choose(selected_backend, attn_selector_config, cls.get_gfx)

    @classmethod
    def get_default_ir_op_priority(cls, config: OpdockConfig) -> IrOpPriorityConfig:
        """Return the order of the providers; see ``priorities``."""
        from opdock_rocm.priorities import default_priority

        return default_priority(inductor=config.compilation_config.uses_inductor)

    @classmethod
    def set_device(cls, device: Any) -> None:
        """Make ``device`` the current one, and create its context."""
        import torch

        torch.cuda.set_device(device)

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        """Seed the generators of all GPUs."""
        import torch

        torch.cuda.manual_seed_all(seed)

    @classmethod
    def log_warnings(cls) -> None:
        """Warn where a variable hides GPUs below HIP: numbers then mean other GPUs to HIP than to amd-smi."""
        if visible.ROCR in os.environ:
            _log.info("%s is set: HIP counts the GPUs that it leaves, from 0.", visible.ROCR)


def _facts(device_id: int) -> gpus.Facts:
    environ = {name: os.environ[name] for name in (visible.HIP, visible.CUDA, visible.ROCR) if name in os.environ}
    return _read(device_id, tuple(environ.items()))


@functools.cache
def _read(device_id: int, environ: tuple[tuple[str, str], ...]) -> gpus.Facts:
    seen = probe.look()
    found = seen.gpus if seen.by == wsl.RUNTIME else visible.select(dict(environ), seen.gpus)
    if 0 <= device_id < len(found) and found[device_id].gfx:
        return found[device_id]
    return gpus.Facts() if probe.why_not() else _read_torch(device_id)


@functools.cache
def _read_torch(device_id: int) -> gpus.Facts:
    """Read from torch, which initialises HIP: what the driver does not say, or under WSL cannot."""
    import torch

    found = torch.cuda.get_device_properties(device_id)
    gfx = str(getattr(found, "gcnArchName", "")).partition(":")[0]
    return gpus.Facts(found.name, "", int(found.total_memory), gfx, int(found.multi_processor_count))
