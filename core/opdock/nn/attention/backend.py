"""``AttentionBackend``: what a backend says of itself, and the reasons why it does not fit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch

from opdock.nn.attention.impl import AttentionImpl
from opdock.nn.attention.metadata import AttentionMetadata

if TYPE_CHECKING:
    from opdock.platforms.enums import DeviceCapability


class MultipleOf(NamedTuple):
    """Every multiple of ``base``."""

    base: int


class AttentionSelectorConfig(NamedTuple):
    """What a layer needs of its backend.

    The first fields are those that plugin authors know; ``has_alibi`` and ``has_soft_cap`` are behind them.
    """

    head_size: int
    dtype: torch.dtype
    kv_cache_dtype: str | None
    block_size: int | None
    use_mla: bool = False
    has_sink: bool = False
    use_sparse: bool = False
    use_mm_prefix: bool = False
    use_per_head_quant_scales: bool = False
    attn_type: str = "decoder"
    has_sliding_window: bool = False
    use_non_causal: bool = False
    use_batch_invariant: bool = False
    use_kv_connector: bool = False
    use_pcp: bool = False
    use_adaptive_verification: bool = False
    use_dcp: bool = False
    use_rswa: bool = False
    has_alibi: bool = False
    has_soft_cap: bool = False

    def __repr__(self) -> str:
        """Show what is asked for, without what is not."""
        parts = [f"{name}={value}" for name, value in self._asdict().items() if value not in (False, None)]
        return f"AttentionSelectorConfig({', '.join(parts)})"


class AttentionBackend(ABC):
    """Base of every backend; all its methods are asked of the class."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16]
    """Dtypes of query and output; empty means all."""
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", "float16", "bfloat16"]
    """Dtypes of the cache by name, ``auto`` for that of the model; empty means all."""
    forward_includes_kv_cache_update: bool = True
    """Whether the attention op writes the cache too, so that one op does both."""

    @staticmethod
    @abstractmethod
    def get_name() -> str:
        """Return the name under which it is registered."""

    @staticmethod
    @abstractmethod
    def get_impl_cls() -> type[AttentionImpl]:
        """Return the class that computes."""

    @staticmethod
    def get_builder_cls() -> type[Any]:
        """Return the class of a step's metadata, which the host makes: no other is possible."""
        return AttentionMetadata

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[int | MultipleOf]:
        """Return the block sizes that it takes."""
        return [MultipleOf(1)]

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        """Return the head sizes that it takes; empty means any."""
        return []

    @classmethod
    def is_mla(cls) -> bool:
        """Return whether it is for latent attention, and for nothing else."""
        return False

    @classmethod
    def is_sparse(cls) -> bool:
        """Return whether it is for sparse attention, and for nothing else."""
        return False

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        """Return whether it takes heads of this size."""
        sizes = cls.get_supported_head_sizes()
        return not sizes or head_size in sizes

    @classmethod
    def supports_dtype(cls, dtype: torch.dtype) -> bool:
        """Return whether it takes queries of this dtype."""
        return not cls.supported_dtypes or dtype in cls.supported_dtypes

    @classmethod
    def supports_kv_cache_dtype(cls, kv_cache_dtype: str | None) -> bool:
        """Return whether it takes caches of this dtype."""
        return (
            kv_cache_dtype is None
            or not cls.supported_kv_cache_dtypes
            or kv_cache_dtype in cls.supported_kv_cache_dtypes
        )

    @classmethod
    def supports_block_size(cls, block_size: int | None) -> bool:
        """Return whether it takes blocks of this size; None is not decided yet."""
        sizes = cls.get_supported_kernel_block_sizes()
        return (
            block_size is None
            or not sizes
            or any(block_size % s.base == 0 if isinstance(s, MultipleOf) else block_size == s for s in sizes)
        )

    @classmethod
    def supports_mm_prefix(cls) -> bool:
        """Return whether parts of a prompt may see one another both ways."""
        return False

    @classmethod
    def supports_sink(cls) -> bool:
        """Return whether it takes sinks."""
        return False

    @classmethod
    def supports_per_head_quant_scales(cls) -> bool:
        """Return whether an 8-bit cache may have a scale for each head."""
        return False

    @classmethod
    def supports_compute_capability(cls, capability: DeviceCapability | None) -> bool:
        """Return whether it runs on devices of this capability; None where the notion does not apply."""
        return True

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        """Return whether it computes this type of attention."""
        return attn_type == "decoder"

    @classmethod
    def supports_sliding_window(cls) -> bool:
        """Return whether it takes a sliding window."""
        return False

    @classmethod
    def supports_rswa(cls) -> bool:
        """Return whether it takes a relative sliding window."""
        return False

    @classmethod
    def supports_non_causal(cls) -> bool:
        """Return whether tokens may see later ones."""
        return False

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        """Return whether the bits of a request's result are the same in any batch, when that is asked for."""
        return False

    @classmethod
    def supports_kv_connector(cls) -> bool:
        """Return whether the cache may be moved by a connector."""
        return True

    @classmethod
    def supports_pcp(cls) -> bool:
        """Return whether prompts may be split over devices."""
        return bool(getattr(cls.get_impl_cls(), "supports_pcp", False))

    @classmethod
    def supports_dcp(cls) -> bool:
        """Return whether a cache may be split over devices."""
        return bool(getattr(cls.get_impl_cls(), "supports_dcp", False))

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls) -> bool:
        """Return whether lengths on the host may differ from those on the device."""
        return True

    @classmethod
    def supports_features(cls, *, alibi: bool, soft_cap: bool) -> str | None:
        """Return why it cannot do one of these, or None."""
        missing = [name for name, asked in (("ALiBi", alibi), ("logits soft cap", soft_cap)) if asked]
        return f"{' and '.join(missing)} not supported" if missing else None

    @classmethod
    def supports_combination(
        cls, config: AttentionSelectorConfig, device_capability: DeviceCapability | None
    ) -> str | None:
        """Return why it cannot do this combination of what it can do one by one, or None."""
        return None

    @classmethod
    def why_not_here(cls, device_type: str) -> str | None:
        """Return why it does not run in this process on devices of this type, or None."""
        return None

    @classmethod
    def why_no_capture(cls) -> str | None:
        """Return why steps with it cannot be captured in a graph of launches, or None."""
        return None

    @classmethod
    def validate_configuration(
        cls, config: AttentionSelectorConfig, device_capability: DeviceCapability | None = None
    ) -> list[str]:
        """Return every reason why it does not fit; none: it fits."""
        c = config
        causal_mla = not (c.use_non_causal and c.use_mla and c.use_dcp)
        checks: list[tuple[bool, str]] = [
            (cls.supports_head_size(c.head_size), "head_size not supported"),
            (cls.supports_dtype(c.dtype), "dtype not supported"),
            (cls.supports_kv_cache_dtype(c.kv_cache_dtype), "kv_cache_dtype not supported"),
            (cls.supports_block_size(c.block_size), "block_size not supported"),
            (
                not c.use_mm_prefix or cls.supports_mm_prefix(),
                "partial multimodal token full attention not supported",
            ),
            (c.use_mla == cls.is_mla(), "MLA not supported" if c.use_mla else "non-MLA not supported"),
            (not c.has_sink or cls.supports_sink(), "attention sinks not supported"),
            (c.use_sparse == cls.is_sparse(), f"{'' if c.use_sparse else 'non-'}sparse not supported"),
            (
                not c.use_per_head_quant_scales or cls.supports_per_head_quant_scales(),
                "per-head quant scales not supported",
            ),
            (cls.supports_compute_capability(device_capability), "compute capability not supported"),
            (cls.supports_attn_type(c.attn_type), f"attention type {c.attn_type} not supported"),
            (not c.has_sliding_window or cls.supports_sliding_window(), "sliding window not supported"),
            (not c.use_rswa or cls.supports_rswa(), "R-SWA not supported"),
            (not c.use_non_causal or cls.supports_non_causal(), "non-causal attention not supported"),
            (causal_mla, "non-causal MLA attention with DCP not supported"),
            (not c.use_batch_invariant or cls.supports_batch_invariance(), "batch invariance not supported"),
            (not c.use_kv_connector or cls.supports_kv_connector(), "KV connector not supported"),
            (not c.use_pcp or cls.supports_pcp(), "PCP not supported"),
            (not c.use_dcp or cls.supports_dcp(), "DCP not supported"),
            (
                not c.use_adaptive_verification or cls.supports_device_cpu_query_lens_mismatch(),
                "device-cpu query lens mismatch not supported, this is needed for adaptive verification",
            ),
        ]
        reasons = [reason for fits, reason in checks if not fits]
        more = (
            cls.supports_features(alibi=c.has_alibi, soft_cap=c.has_soft_cap),
            cls.supports_combination(config, device_capability),
        )
        reasons.extend(reason for reason in more if reason)
        return reasons
