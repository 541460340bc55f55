"""Attention on AMD GPUs: the host's Triton kernels, which it cuts for 64 KiB of shared memory there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opdock.nn.attention.backends.triton import TritonAttentionBackend
from opdock_rocm import gpus
from opdock_rocm.attention_choice import NAME

if TYPE_CHECKING:
    from opdock.nn.attention.backend import AttentionSelectorConfig
    from opdock.platforms.enums import DeviceCapability


class RocmAttentionBackend(TritonAttentionBackend):
    """What the host's Triton backend takes, but for 8-bit caches on GPUs without instructions for 8-bit floats."""

    @staticmethod
    def get_name() -> str:
        """Return its name."""
        return NAME

    @classmethod
    def supports_combination(
        cls, config: AttentionSelectorConfig, device_capability: DeviceCapability | None
    ) -> str | None:
        """Return why a cache cannot be read on this GPU, or None."""
        if device_capability is None or not str(config.kv_cache_dtype).startswith("fp8"):
            return None
        family = f"gfx{device_capability.major}{device_capability.minor:x}"
        return None if gpus.multiplies_fp8(family) else f"{family} has no instructions for 8-bit floats"
