"""The attention backend ``PALLAS``: a kernel for decoded tokens, the formula through XLA for prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from opdock.nn.attention.backend import AttentionBackend
from opdock.nn.attention.impl import AttentionImpl, AttentionSpec
from opdock.nn.attention.metadata import AttentionMetadata
from opdock_tpu import arrays, library, predicates, probe, xla

if TYPE_CHECKING:
    from opdock.nn.attention.attention import Attention

NAME = "PALLAS"

LANES = 128
"""Columns of a tile. Heads of another width would be copied in every step, with the whole cache, for a kernel."""


ROWS, FRACTIONS = 8, (1, 2, 4)
"""Cached heads that fill tiles: multiples of the first, or one of the second. With others XLA copies likewise."""


def why_no_kernel(spec: AttentionSpec, dtype: torch.dtype, block_size: int) -> str:
    """Return why the formula serves decoded tokens, "" where the kernel does.

    Args:
        spec: of the layer.
        dtype: of queries and cache.
        block_size: positions of a block.
    """
    if spec.has_alibi or spec.has_sinks:
        return "no kernel with ALiBi or sinks"
    if spec.head_size % LANES:
        return f"heads of {spec.head_size} are no multiple of {LANES}, and the cache would be copied in every step"
    if spec.num_kv_heads % ROWS and spec.num_kv_heads not in FRACTIONS:
        return f"{spec.num_kv_heads} cached heads fill no tile, and the cache would be copied in every step"
    if block_size * spec.num_kv_heads % (32 // dtype.itemsize):
        return f"blocks of {block_size} positions of {spec.num_kv_heads} heads are no whole tiles of {dtype}"
    return ""


class PallasAttentionImpl(AttentionImpl):
    """Computes attention by the kernel ``paged_attention``, or by the formula."""

    def __init__(self, spec: AttentionSpec, layer: Attention) -> None:
        """Take the features from the layer."""
        super().__init__(spec, layer)
        self._numbers: dict[str, Any] = {
            "scale": spec.scale,
            "window": spec.sliding_window,
            "soft_cap": spec.logits_soft_cap,
        }

    def update_cache(
        self, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata
    ) -> None:
        """Write the step's keys and values to their slots; the caches' memory is used again."""
        from opdock_tpu.kernels import formula

        if key.device.type != predicates.DEVICE:
            super().update_cache(key, value, key_cache, value_cache, metadata)
            return
        slots = arrays.of(metadata.slot_mapping)
        for new, cache in ((key, key_cache), (value, value_cache)):
            cache._elem = formula.write(arrays.of(cache), arrays.of(new), slots)  # type: ignore[attr-defined]

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
        """Serve a step of decoded tokens by the kernel, and any other by the formula."""
        if query.shape[0]:
            arrays.write(self.compute(query, key_cache, value_cache, metadata), output)

    def prompts_alone(self, query: Tensor, key: Tensor, value: Tensor, metadata: AttentionMetadata) -> Tensor | None:
        """Return the whole result of a step: XLA allocates it in any case."""
        key_cache, value_cache = self.layer.key_cache, self.layer.value_cache
        if key_cache is None or value_cache is None or not query.shape[0]:
            return None
        return arrays.like(self.compute(query, key_cache, value_cache, metadata), query)

    def compute(self, query: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata) -> Any:
        """Return a step's attention as an array of jax, (tokens, heads, head_size); rows of no request are zeros."""
        from opdock_tpu.kernels import formula
        from opdock_tpu.kernels.paged_attention import paged_attention

        q, k, v = (arrays.of(t) for t in (query, key_cache, value_cache))
        starts, lengths, table = (
            arrays.of(t) for t in (metadata.query_start_loc, metadata.seq_lens, metadata.block_table)
        )
        refused = why_no_kernel(self.spec, key_cache.dtype, key_cache.shape[1])
        if metadata.max_query_len <= 1 and not refused:
            request, there = formula.rows_of(starts, lengths, q.shape[0])
            present = there * lengths[request]
            return paged_attention(q, k, v, table[request], present, **self._numbers, interpret=xla.interpreting())
        features = {
            name: None if tensor is None else arrays.of(tensor)
            for name, tensor in (("slopes", self.layer.alibi_slopes), ("sinks", self.layer.sinks))
        }
        most = max(metadata.max_query_len, 1)
        return formula.paged(q, k, v, starts, lengths, table, most=most, **self._numbers, **features)


class PallasAttentionBackend(AttentionBackend):
    """Causal attention with every feature in bfloat16 and float32, over blocks of any size."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", "bfloat16", "float32"]

    @staticmethod
    def get_name() -> str:
        """Return its name."""
        return NAME

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl]:
        """Return what computes."""
        return PallasAttentionImpl

    @classmethod
    def supports_sink(cls) -> bool:
        """Return True."""
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        """Return True."""
        return True

    @classmethod
    def supports_features(cls, *, alibi: bool, soft_cap: bool) -> str | None:
        """Return None: both."""
        return None

    @classmethod
    def why_not_here(cls, device_type: str) -> str | None:
        """Return why it does not run on devices of this type, or None."""
        if device_type != predicates.DEVICE and not (device_type == "cpu" and probe.on_cpu()):
            return f"it runs on {predicates.DEVICE}, and tensors are on {device_type}"
        return library.why_not() or probe.why_not() or None
