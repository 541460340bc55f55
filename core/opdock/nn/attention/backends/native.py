"""Attention by the formula, request by request, on any device."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from opdock.nn.attention.backend import AttentionBackend
from opdock.nn.attention.dense import attend, attend_by_rows
from opdock.nn.attention.gathering import gather, requests_of
from opdock.nn.attention.impl import AttentionImpl
from opdock.nn.attention.metadata import AttentionMetadata


class NativeImpl(AttentionImpl):
    """The formula, in float32 or wider."""

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
        """Gather each request's keys and values, and attend to them."""
        output.zero_()
        by_formula = attend_by_rows if self.spec.batch_invariant else attend
        layer, wide = self.layer, torch.promote_types(query.dtype, torch.float32)
        for request, start, end, total in requests_of(metadata, key_cache.shape[1], layer.prefix):
            k = gather(key_cache, metadata.block_table, request, total, layer.k_scale, wide)
            v = gather(value_cache, metadata.block_table, request, total, layer.v_scale, wide)
            output[start:end] = by_formula(
                query[start:end], k, v, self.spec, alibi_slopes=layer.alibi_slopes, sinks=layer.sinks
            )


class NativeAttentionBackend(AttentionBackend):
    """Any device, dtype, head size and feature; slow."""

    supported_dtypes: ClassVar[list[torch.dtype]] = []
    supported_kv_cache_dtypes: ClassVar[list[str]] = []

    @staticmethod
    def get_name() -> str:
        """Return its name."""
        return "NATIVE"

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl]:
        """Return what computes."""
        return NativeImpl

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
        """Return True: each request is computed alone, and each of its positions then too."""
        return True

    @classmethod
    def supports_features(cls, *, alibi: bool, soft_cap: bool) -> str | None:
        """Return None: all."""
        return None

    @classmethod
    def why_no_capture(cls) -> str | None:
        """Return that the host asks the device."""
        return "The host reads the lengths of the requests from the device, in each step."
