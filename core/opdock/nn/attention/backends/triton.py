"""Attention by the Triton kernels, on NVIDIA and AMD, and on CPU tensors in Triton's interpreter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from opdock.nn.attention.backend import AttentionBackend, AttentionSelectorConfig, MultipleOf
from opdock.nn.attention.impl import AttentionImpl, AttentionSpec, writes_rows
from opdock.nn.attention.metadata import AttentionMetadata
from opdock.nn.kernels import triton as kernels

if TYPE_CHECKING:
    from opdock.nn.attention.attention import Attention
    from opdock.platforms.enums import DeviceCapability


class TritonImpl(AttentionImpl):
    """Two kernels at most for a step, whatever it holds; both can be captured in a CUDA graph."""

    def __init__(self, spec: AttentionSpec, layer: Attention) -> None:
        """Load Triton."""
        super().__init__(spec, layer)
        from opdock.nn.kernels.triton import attention_again, attention_cache, attention_launch

        self._store, self._attend = attention_cache.reshape_and_cache, attention_launch.paged_attention
        self._counters = attention_again.Counters()

    @writes_rows
    def update_cache(
        self, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata
    ) -> None:
        """Write both in one kernel."""
        k_scale, v_scale = self._held("k_scale"), self._held("v_scale")
        self._store(key, value, key_cache, value_cache, metadata.slot_mapping, k_scale, v_scale)

    def _held(self, name: str) -> Any:
        """Return a tensor of the layer; to ask a module for an attribute takes much longer."""
        buffers = self.layer._buffers
        return buffers[name] if name in buffers else getattr(self.layer, name)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        metadata: AttentionMetadata,
        output: Tensor,
    ) -> None:
        """Start the kernels."""
        self.attend(query, key_cache, value_cache, metadata, output)

    def attend(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        metadata: AttentionMetadata,
        output: Tensor,
        *,
        elsewhere: int = 1 << 30,
    ) -> None:
        """Start the kernels; prompts without a prefix of ``elsewhere`` tokens and more are left out."""
        self._attend(
            query,
            key_cache,
            value_cache,
            metadata,
            output,
            self.spec,
            k_scale=self._held("k_scale"),
            v_scale=self._held("v_scale"),
            counters=self._counters,
            alibi_slopes=self._held("alibi_slopes"),
            sinks=self._held("sinks"),
            elsewhere=elsewhere,
        )


class TritonAttentionBackend(AttentionBackend):
    """Every feature; blocks of a multiple of 16 positions, heads of 16 to 256."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", "float16", "bfloat16", "float32", "fp8_e4m3", "fp8_e5m2"]

    @staticmethod
    def get_name() -> str:
        """Return its name."""
        return "TRITON_ATTN"

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl]:
        """Return what computes."""
        return TritonImpl

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[int | MultipleOf]:
        """Return multiples of 16."""
        return [MultipleOf(16)]

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        """Return whether it is a multiple of 8 from 16 to 256."""
        return 16 <= head_size <= 256 and head_size % 8 == 0

    @classmethod
    def supports_sink(cls) -> bool:
        """Return True."""
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        """Return True."""
        return True

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        """Return True: splits are then of one size."""
        return True

    @classmethod
    def supports_features(cls, *, alibi: bool, soft_cap: bool) -> str | None:
        """Return None: all."""
        return None

    @classmethod
    def supports_combination(
        cls, config: AttentionSelectorConfig, device_capability: DeviceCapability | None
    ) -> str | None:
        """Return why a cache of e4m3 cannot be read, or bfloat16 not be multiplied, or None."""
        if config.dtype == torch.bfloat16 and kernels.interpreted():
            return "Triton's interpreter multiplies bfloat16 wrongly; float32 and float16 are right"
        if config.kv_cache_dtype == "fp8_e4m3" and device_capability is not None and device_capability < (8, 9):
            found = device_capability.as_version_str()
            return f"Triton reads e4m3 from compute capability 8.9 on, and this is {found}"
        return None

    @classmethod
    def why_not_here(cls, device_type: str) -> str | None:
        """Return why Triton cannot be used on such devices."""
        if device_type != "cuda" and not (device_type == "cpu" and kernels.interpreted()):
            return f"no kernels for {device_type} tensors"
        return kernels.why_not() or None
