"""``Platform``: what a backend tells the host about the device that the process runs on.

A backend subclasses it and overrides classmethods; the process holds one instance. Every method states who
calls it. Methods that only an engine calls are in ``EngineHooks``.
"""

from __future__ import annotations

import contextlib
import platform as host
from typing import TYPE_CHECKING, Any, ClassVar

from opdock.config import NATIVE, IrOpPriorityConfig
from opdock.errors import ConfigError, suggest
from opdock.platforms.engine_hooks import EngineHooks
from opdock.platforms.enums import CpuArchEnum, DeviceCapability, PlatformEnum

if TYPE_CHECKING:
    import torch

    from opdock.compile.fusion import Fusion
    from opdock.config import OpdockConfig

__all__ = ["API_VERSION", "CpuArchEnum", "DeviceCapability", "Platform", "PlatformEnum"]

API_VERSION = 1
"""The version of this interface. A class may state the one that it was written for as ``api_version``."""


class Platform(EngineHooks):
    """Base of every platform.

    A subclass sets ``_enum``, ``device_name``, ``device_type`` and ``dispatch_key``; the rest has defaults.
    An unknown attribute of the instance is looked up in ``torch.<device_type>`` and is an AttributeError
    if it is not there.
    """

    _enum: PlatformEnum
    device_name: str
    """For messages, for example ``cuda``."""
    device_type: str
    """The torch device type of its tensors."""
    dispatch_key: str = "CPU"
    """The torch.library key of its tensors; checked against ``device_type`` at activation."""
    api_version: ClassVar[int | None] = None
    """The ``API_VERSION`` that the class was written for; None states nothing."""
    dist_backend: str = ""
    """The torch.distributed backend."""
    simple_compile_backend: str = "inductor"
    """The torch.compile backend for single ops, and the default one for models."""
    device_control_env_var: str = ""
    """The environment variable that hides devices, for example ``CUDA_VISIBLE_DEVICES``."""
    supported_quantization: list[str] = []  # noqa: RUF012 - plugin authors override it as a plain list
    """Names of quantisation methods; empty means all."""

    # -- what it is

    def is_cuda(self) -> bool:
        """Return whether this is an NVIDIA platform."""
        return self._enum is PlatformEnum.CUDA

    def is_rocm(self) -> bool:
        """Return whether this is an AMD platform."""
        return self._enum is PlatformEnum.ROCM

    def is_tpu(self) -> bool:
        """Return whether this is a TPU platform."""
        return self._enum is PlatformEnum.TPU

    def is_xpu(self) -> bool:
        """Return whether this is an Intel GPU platform."""
        return self._enum is PlatformEnum.XPU

    def is_cpu(self) -> bool:
        """Return whether this is a CPU platform."""
        return self._enum is PlatformEnum.CPU

    def is_out_of_tree(self) -> bool:
        """Return whether CustomOps bind ``forward_oot`` here."""
        return self._enum is PlatformEnum.OOT

    def is_unspecified(self) -> bool:
        """Return whether no platform was found and none wanted."""
        return self._enum is PlatformEnum.UNSPECIFIED

    def is_cuda_alike(self) -> bool:
        """Return whether its tensors are ``cuda`` tensors to torch."""
        return self._enum in (PlatformEnum.CUDA, PlatformEnum.ROCM)

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        """The dtypes that models may run in; the first is the default."""
        import torch

        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> DeviceCapability | None:
        """Return the compute capability, None where the notion does not apply."""
        return None

    @classmethod
    def has_device_capability(cls, capability: tuple[int, int] | int, device_id: int = 0) -> bool:
        """Return whether the device has at least ``capability``, a pair or an int such as 90."""
        found = cls.get_device_capability(device_id)
        return found is not None and _as_pair(found) >= _as_pair(capability)

    @classmethod
    def is_device_capability(cls, capability: tuple[int, int] | int, device_id: int = 0) -> bool:
        """Return whether the device has exactly ``capability``."""
        found = cls.get_device_capability(device_id)
        return found is not None and _as_pair(found) == _as_pair(capability)

    @classmethod
    def is_device_capability_family(cls, capability: int, device_id: int = 0) -> bool:
        """Return whether the device shares ``capability``'s major version, given as an int such as 100."""
        found = cls.get_device_capability(device_id)
        return found is not None and found.major == capability // 10

    @classmethod
    def get_cpu_architecture(cls) -> CpuArchEnum:
        """Return the architecture of the host's CPU."""
        return CpuArchEnum.of(host.machine())

    @classmethod
    def supports_fp8(cls) -> bool:
        """Return whether the device multiplies fp8 matrices."""
        return False

    @classmethod
    def is_fp8_fnuz(cls) -> bool:
        """Return whether its fp8 format is the fnuz one."""
        return False

    @classmethod
    def fp8_dtype(cls) -> torch.dtype:
        """Return the fp8 dtype that its kernels take."""
        import torch

        return torch.float8_e4m3fnuz if cls.is_fp8_fnuz() else torch.float8_e4m3fn

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:
        """Return the number of multiprocessors or cores, for tuning."""
        raise NotImplementedError(f"{cls.__name__} does not say how many compute units its device has.")

    # -- kernels: called once, by the host, when the platform is activated, in this order

    @classmethod
    def import_kernels(cls) -> None:
        """Load the extensions that define the vendor's torch ops. Called first; may be called again."""

    @classmethod
    def import_ir_kernels(cls) -> None:
        """Import the modules that register IR providers. Called after ``import_kernels``."""

    @classmethod
    def register_oot(cls) -> None:
        """Register replacements of op classes. Called after ``import_ir_kernels``."""

    @classmethod
    def get_default_ir_op_priority(cls, config: OpdockConfig) -> IrOpPriorityConfig:
        """Return the order of providers for each IR op under ``config``."""
        return IrOpPriorityConfig.with_default([NATIVE])

    @classmethod
    def compile_passes(cls) -> list[Fusion]:
        """Return fusions to try in compiled code before the host's own."""
        return []

    # -- configuration: called by ``opdock.set_current_config``; may be called again

    @classmethod
    def apply_config_platform_defaults(cls, config: OpdockConfig) -> None:
        """Change ``config`` before the base mode, the backend and the priorities are filled in."""

    @classmethod
    def check_and_update_config(cls, config: OpdockConfig) -> None:
        """Check or change ``config`` after everything is filled in; the last word before it is sealed."""

    @classmethod
    def get_compile_backend(cls) -> str:
        """Return the torch.compile backend that is used when the configuration names none."""
        return cls.simple_compile_backend

    @classmethod
    def verify_quantization(cls, quant: str) -> None:
        """Raise ConfigError unless the platform supports the quantisation method ``quant``."""
        if cls.supported_quantization and quant not in cls.supported_quantization:
            raise ConfigError(
                f"{quant} quantization is currently not supported in {cls.device_name}.",
                remedy=suggest(quant, cls.supported_quantization),
            )

    # -- running: called by the model side

    @classmethod
    def inference_mode(cls) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which a model is loaded and runs, without gradients."""
        import torch

        return torch.inference_mode()

    @classmethod
    def opaque_attention_op(cls) -> bool:
        """Return whether attention is called as one opaque torch op."""
        return False

    @classmethod
    def get_attn_backend_cls(
        cls, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None
    ) -> str:
        """Return the class path of the attention backend; "" leaves it to the host."""
        return ""

    def __getattr__(self, name: str) -> Any:
        """Return ``torch.<device_type>.<name>``; AttributeError if there is none."""
        if not name.startswith("_"):
            import torch

            module = getattr(torch, getattr(type(self), "device_type", "") or "", None)
            value = getattr(module, name, None)
            if value is not None:
                return value
        known = [n for n in dir(type(self)) if not n.startswith("_")]
        raise AttributeError(f"Platform {type(self).__name__} has no attribute {name!r}. {suggest(name, known)}")


class UnspecifiedPlatform(Platform):
    """No device: native methods on whatever device tensors are on (``VLLM_TARGET_DEVICE=empty``)."""

    _enum = PlatformEnum.UNSPECIFIED
    device_name = "unspecified"
    device_type = ""


def _as_pair(capability: tuple[int, int] | int) -> tuple[int, int]:
    return divmod(capability, 10) if isinstance(capability, int) else (capability[0], capability[1])
