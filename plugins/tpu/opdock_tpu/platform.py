"""``TpuPlatform``: what opdock asks of Google's TPUs. It imports neither torchax nor jax before it is chosen."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from opdock.errors import UnsupportedError
from opdock.platforms.interface import Platform, PlatformEnum
from opdock_tpu import visible

if TYPE_CHECKING:
    import torch

    from opdock import IrOpPriorityConfig, OpdockConfig

ATTENTION = "opdock_tpu.attention:PallasAttentionBackend"

DTYPES = ("bfloat16", "float32")
"""The dtypes that models may run in, the default first: no generation multiplies float16."""


class TpuPlatform(Platform):
    """TPUs through XLA. Tensors are torchax's, on device ``jax``; facts come from jax, which starts libtpu."""

    _enum = PlatformEnum.TPU
    device_name = "tpu"
    device_type = "jax"
    dispatch_key = "PrivateUse1"
    device_control_env_var = visible.VARIABLE
    # XLA compiles whole programs, by opdock_tpu.xla.compiled; torch.compile runs opdock's passes, then op by op.
    simple_compile_backend = "opdock_eager"
    supported_quantization = ["int8_w8a8"]  # noqa: RUF012 - the host's attribute
    ray_device_key = "TPU"
    ray_noset_device_env_vars = ["RAY_EXPERIMENTAL_NOSET_TPU_VISIBLE_CHIPS"]  # noqa: RUF012
    additional_env_vars = ["JAX_PLATFORMS", "TPU_LIBRARY_PATH", visible.STAND_IN]  # noqa: RUF012
    api_version = 1

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        """The dtypes that models may run in; the first is the default."""
        import torch

        return [getattr(torch, name) for name in DTYPES]

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        """Return the kind of the chip, for example ``TPU v5 lite``."""
        return str(_devices()[device_id].device_kind)

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """Return the memory of a device in bytes; UnsupportedError where XLA does not say."""
        return int(_memory(device_id)["bytes_limit"])

    @classmethod
    def get_current_memory_usage(cls, device: Any = None) -> float:
        """Return the bytes that arrays take on device 0."""
        return float(_memory(0)["bytes_in_use"])

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:
        """Return the number of cores that a device has for programs: 1, or 2 where they are not joined."""
        return int(getattr(_devices()[device_id], "num_cores", 1))

    @classmethod
    def check_if_supports_dtype(cls, dtype: Any) -> None:
        """Raise UnsupportedError if TPUs run no models in ``dtype``."""
        name = str(dtype).removeprefix("torch.")
        if name not in DTYPES:
            raise UnsupportedError(
                f"{name} does not run on TPUs.", why=f"They run {', '.join(DTYPES)}.", remedy=f"use dtype {DTYPES[0]}."
            )

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        """Return False: XLA copies to the device from memory of its own."""
        return False

    @classmethod
    def import_kernels(cls) -> None:
        """Load torchax, and teach it what it runs for opdock. No device is started.

        Raises: PlatformError with the reason where it cannot be loaded.
        """
        from opdock_tpu import library

        library.load()

    @classmethod
    def import_ir_kernels(cls) -> None:
        """Register the providers named ``pallas``."""
        from opdock_tpu import providers  # noqa: F401

    @classmethod
    def register_oot(cls) -> None:
        """Register the replaced attention layer and the attention backend."""
        from opdock_tpu import layers  # noqa: F401

    @classmethod
    def get_default_ir_op_priority(cls, config: OpdockConfig) -> IrOpPriorityConfig:
        """Return the kernels, then native; ``xla.compiled`` leaves to XLA what it fuses."""
        from opdock_tpu.priorities import default_priority

        return default_priority()

    @classmethod
    def inference_mode(cls) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which tensors of device ``jax`` compute, without gradients."""
        from opdock_tpu import xla

        return xla.without_gradients()

    @classmethod
    def get_attn_backend_cls(
        cls, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None
    ) -> str:
        """Return the backend ``PALLAS`` where it is asked for, or none is and it fits; else the host chooses."""
        from opdock_tpu.attention import NAME, PallasAttentionBackend

        if selected_backend is not None:
            return ATTENTION if selected_backend == NAME else ""
        needs = attn_selector_config
        return "" if needs is not None and PallasAttentionBackend.validate_configuration(needs) else ATTENTION

    @classmethod
    def set_device(cls, device: Any) -> None:
        """Do nothing: XLA places arrays by their sharding."""

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        """Seed torchax's generator."""
        import torchax

        torchax.default_env().manual_seed(seed)


def _devices() -> list[Any]:
    """Return the devices of jax; this starts its client."""
    import jax

    from opdock_tpu import library

    library.load()
    return list(jax.local_devices())


def _memory(device_id: int) -> dict[str, int]:
    stats = _devices()[device_id].memory_stats()
    if not stats:
        raise UnsupportedError(
            f"XLA keeps no account of the memory of {_devices()[device_id].device_kind}.",
            remedy="ask on a TPU; OPDOCK_TPU_ON=cpu has none.",
        )
    return dict(stats)
