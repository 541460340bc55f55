"""Attention by ``torch.nn.functional.scaled_dot_product_attention``, request by request."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from opdock.nn.attention.backend import AttentionBackend
from opdock.nn.attention.dense import visible
from opdock.nn.attention.gathering import gather, requests_of
from opdock.nn.attention.impl import AttentionImpl
from opdock.nn.attention.metadata import AttentionMetadata


class SdpaImpl(AttentionImpl):
    """One call for each request."""

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
        for request, start, end, total in requests_of(metadata, key_cache.shape[1], self.layer.prefix):
            if not total:
                continue
            k = gather(key_cache, metadata.block_table, request, total, self.layer.k_scale, query.dtype)
            v = gather(value_cache, metadata.block_table, request, total, self.layer.v_scale, query.dtype)
            output[start:end] = self._one(query[start:end], k, v)

    def _one(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the attention of the last positions of one request."""
        spec, new, total = self.spec, query.shape[0], key.shape[0]
        if self.layer.alibi_slopes is not None:  # a bias of 16 bits is a whole step of the scores off, far away
            wide = torch.promote_types(query.dtype, torch.float32)
            query, key, value = query.to(wide), key.to(wide), value.to(wide)
        q, k, v = (t.transpose(0, 1)[None] for t in (query, key, value))
        if new == 1 and self.layer.alibi_slopes is None:
            # one row sees all keys, or the last of them; heads of a group are rows of one matrix
            if spec.sliding_window is not None:
                k, v = k[:, :, -spec.sliding_window :], v[:, :, -spec.sliding_window :]
            q = query.view(1, spec.num_kv_heads, -1, spec.head_size)
            return F.scaled_dot_product_attention(q, k, v, scale=spec.scale).view(1, spec.num_heads, spec.head_size)
        mask = self._mask(new, total, query)
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            is_causal=mask is None,
            scale=spec.scale,
            enable_gqa=spec.num_heads > spec.num_kv_heads,
        )
        return out[0].transpose(0, 1)

    def _mask(self, new: int, total: int, query: Tensor) -> Tensor | None:
        """Return what is added to the scores or which are seen; None: all that is not later."""
        slopes = self.layer.alibi_slopes
        if new == total and self.spec.sliding_window is None and slopes is None:
            return None
        columns = torch.arange(total, device=query.device)
        rows = columns[total - new :]
        seen = visible(rows, columns, self.spec.sliding_window)
        if slopes is None:
            return seen
        bias = slopes.float()[:, None, None] * (columns[None, :] - rows[:, None])
        return bias.masked_fill(~seen, float("-inf")).to(query.dtype)[None]


class SdpaAttentionBackend(AttentionBackend):
    """Any device that torch has the operator for; no soft cap, no sinks."""

    supported_dtypes: ClassVar[list[torch.dtype]] = []
    supported_kv_cache_dtypes: ClassVar[list[str]] = []

    @staticmethod
    def get_name() -> str:
        """Return its name."""
        return "SDPA"

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl]:
        """Return what computes."""
        return SdpaImpl

    @classmethod
    def supports_sliding_window(cls) -> bool:
        """Return True: as a mask."""
        return True

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        """Return False: each request is computed alone, but torch promises no order for the tokens of a step."""
        return False

    @classmethod
    def supports_features(cls, *, alibi: bool, soft_cap: bool) -> str | None:
        """Return what is missing: the soft cap."""
        return "logits soft cap not supported" if soft_cap else None

    @classmethod
    def why_no_capture(cls) -> str | None:
        """Return that the host asks the device."""
        return "The host reads the lengths of the requests from the device, in each step."
