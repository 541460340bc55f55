"""The platform of Ascend NPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opdock.errors import UnsupportedError
from opdock.platforms.interface import Platform, PlatformEnum
from opdock_ascend import visible

if TYPE_CHECKING:
    import torch

    from opdock import IrOpPriorityConfig, OpdockConfig

WITHOUT_BFLOAT16 = ("Ascend310", "Ascend910A", "Ascend910ProA", "Ascend910ProB", "Ascend910PremiumA")
"""How the names of chips begin whose vector units have no bfloat16."""


ATTENTION = "opdock_ascend.attention:AscendAttentionBackend"


class AscendPlatform(Platform):
    """Ascend NPUs. Facts come from torch_npu, which starts the driver when it is first asked."""

    _enum = PlatformEnum.OOT
    device_name = "npu"
    device_type = "npu"
    dispatch_key = "PrivateUse1"
    dist_backend = "hccl"
    device_control_env_var = visible.VARIABLE
    # Inductor makes code for NPUs only with a compiler of its own. This one runs opdock's passes, then the graph.
    simple_compile_backend = "opdock_eager"
    supported_quantization = ["int8_w8a8", "compressed-tensors"]  # noqa: RUF012 - the host's attribute
    ray_device_key = "NPU"
    ray_noset_device_env_vars = ["RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES"]  # noqa: RUF012
    api_version = 1

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        """The dtypes that models may run in on device 0; the first is the default."""
        import torch

        return [getattr(torch, name) for name in dtype_names(self.get_device_name())]

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        """Return the name of the chip, for example ``Ascend910B3``."""
        return str(_npu().get_device_name(device_id))

    @classmethod
    def get_device_uuid(cls, device_id: int = 0) -> str:
        """Return the UUID, as the driver states it."""
        return str(_npu().get_device_properties(device_id).uuid)

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """Return the memory of a device in bytes."""
        return int(_npu().get_device_properties(device_id).total_memory)

    @classmethod
    def get_current_memory_usage(cls, device: Any = None) -> float:
        """Return the bytes that torch's tensors take on ``device``."""
        return float(_npu().memory_allocated(device))

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:
        """Return the number of vector cores."""
        return int(_npu().get_device_properties(device_id).vector_core_num)

    @classmethod
    def check_if_supports_dtype(cls, dtype: Any) -> None:
        """Raise UnsupportedError if device 0 runs no models in ``dtype``."""
        chip = cls.get_device_name()
        name, names = str(dtype).removeprefix("torch."), dtype_names(chip)
        if name not in names:
            raise UnsupportedError(
                f"{name} does not run on {chip}.", why=f"It runs {', '.join(names)}.", remedy=f"use dtype {names[0]}."
            )

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        """Return True: CANN allocates pinned host memory."""
        return True

    @classmethod
    def import_kernels(cls) -> None:
        """Load torch_npu: the device, and the operators that providers call.

        Raises: PlatformError with the reason where it cannot be loaded.
        """
        from opdock_ascend import library

        library.load()

    @classmethod
    def import_ir_kernels(cls) -> None:
        """Register the providers named ``ascend`` and ``ascend_mul``."""
        from opdock_ascend import providers  # noqa: F401

    @classmethod
    def register_oot(cls) -> None:
        """Register the replaced layers, the attention backend and the linear kernel."""
        from opdock_ascend import layers  # noqa: F401

    @classmethod
    def get_default_ir_op_priority(cls, config: OpdockConfig) -> IrOpPriorityConfig:
        """Return torch_npu's operators, then native."""
        from opdock_ascend.priorities import default_priority

        return default_priority()

    @classmethod
    def get_attn_backend_cls(
        cls, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None
    ) -> str:
        """Return the backend ``ASCEND`` where it is asked for, or none is and it fits; else the host chooses."""
        from opdock_ascend.attention import NAME, AscendAttentionBackend

        if selected_backend is not None:
            return ATTENTION if selected_backend == NAME else ""
        needs = attn_selector_config
        return "" if needs is not None and AscendAttentionBackend.validate_configuration(needs) else ATTENTION

    @classmethod
    def set_device(cls, device: Any) -> None:
        """Make ``device`` the current one, and create its context."""
        _npu().set_device(device)

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        """Seed the generators of all NPUs."""
        _npu().manual_seed_all(seed)


def dtype_names(chip: str) -> list[str]:
    """Return the names of the dtypes that models may run in, the default first.

    Args:
        chip: its name, such as ``Ascend910B3`` or ``Ascend310P3``.
    """
    if chip.startswith(WITHOUT_BFLOAT16):
        return ["float16", "float32"]
    return ["bfloat16", "float16", "float32"]


def _npu() -> Any:
    """Return the module ``torch.npu``."""
    import torch

    from opdock_ascend import library

    library.load()
    return torch.npu  # type: ignore[attr-defined]
