"""Attention by FlashAttention 2, over the paged cache as it is: ``attn_backend="FLASH_ATTN"``.

Its kernels for a paged cache take blocks of a multiple of 256 positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from opdock.nn.attention import AttentionImpl, AttentionMetadata, AttentionSpec, MultipleOf
from opdock_cuda.optional_attention import Library, LibraryBackend, LibraryImpl

if TYPE_CHECKING:
    from opdock.nn.attention import Attention

NAME = "FLASH_ATTN"
LIBRARY = Library("flash_attn", "flash-attn", (2, 6))
_KEPT = "_opdock_flash_attention"


@dataclass(frozen=True)
class Facts:
    """What a step is for FlashAttention.

    Attributes:
        key_starts: (requests + 1,) int32, sums of the positions.
        rows: tokens of requests; None: the host does not know.
        longest: new tokens of a request, at most.
    """

    key_starts: Tensor
    rows: int | None
    longest: int

    @classmethod
    def of(cls, step: AttentionMetadata) -> Facts:
        """Return those of a step, kept on it where the host knows its lengths; reads nothing from the device."""
        kept = step.__dict__.get(_KEPT)
        if kept is not None:
            return kept  # type: ignore[no-any-return]
        lens = step.query_lens
        sums = torch.zeros(step.num_requests + 1, dtype=torch.int32, device=step.seq_lens.device)
        torch.cumsum(step.seq_lens, 0, dtype=torch.int32, out=sums[1:])
        # for steps of 1 token it takes a path that reads each request's row, which must then be there
        single = lens is not None and all(new == 1 for new in lens)
        longest = 1 if single else max(2, step.max_query_len)
        found = cls(sums, None if lens is None else sum(lens), longest)
        if lens is not None:
            object.__setattr__(step, _KEPT, found)
        return found


def call(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    step: AttentionMetadata,
    facts: Facts,
    spec: AttentionSpec,
    alibi_slopes: Tensor | None,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of ``flash_attn_varlen_func``."""
    return (query, key_cache, value_cache), {
        "cu_seqlens_q": step.query_start_loc,
        "cu_seqlens_k": facts.key_starts,
        "max_seqlen_q": facts.longest,
        "max_seqlen_k": step.max_seq_len,
        "softmax_scale": spec.scale,
        "causal": True,
        "window_size": (-1, -1) if spec.sliding_window is None else (spec.sliding_window - 1, 0),
        "softcap": spec.logits_soft_cap or 0.0,
        "alibi_slopes": None if alibi_slopes is None else alibi_slopes.float().contiguous(),
        "block_table": step.block_table,
    }


class FlashAttentionImpl(LibraryImpl):
    """One call for a layer, whatever the step holds; nothing is read from the device."""

    def __init__(self, spec: AttentionSpec, layer: Attention) -> None:
        """Import FlashAttention."""
        super().__init__(spec, layer)
        self._function = LIBRARY.load(layer.prefix).flash_attn_varlen_func

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
        """Call it, and write zeros to rows of no request; see the base."""
        facts = Facts.of(metadata)
        rows = query.shape[0] if facts.rows is None else facts.rows
        if not rows or not metadata.max_seq_len:
            output.zero_()
            return
        args, options = call(query[:rows], key_cache, value_cache, metadata, facts, self.spec, self.layer.alibi_slopes)
        found = self._function(*args, **options)
        if facts.rows is not None:
            output[:rows] = found
            output[rows:].zero_()
            return
        there = torch.arange(rows, device=query.device) < metadata.query_start_loc[-1]
        torch.where(there[:, None, None], found, torch.zeros_like(found), out=output)


class FlashAttentionBackend(LibraryBackend):
    """Causal attention, with sliding window, soft cap and ALiBi; heads of a multiple of 8, to 256."""

    library: ClassVar[Library] = LIBRARY
    because: ClassVar[dict[str, str]] = {
        "head_size not supported": "multiples of 8 to 256 are",
        "dtype not supported": "float16 and bfloat16 are",
        "kv_cache_dtype not supported": "FlashAttention 2 reads the dtype of the queries",
        "block_size not supported": "multiples of 256 are",
        "compute capability not supported": "8.0 and later are",
        "attention sinks not supported": "FlashAttention 2 has none",
        "batch invariance not supported": "its splits follow the batch",
    }

    @staticmethod
    def get_name() -> str:
        """Return its name."""
        return NAME

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl]:
        """Return what computes."""
        return FlashAttentionImpl

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[int | MultipleOf]:
        """Return multiples of 256."""
        return [MultipleOf(256)]

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        """Return whether it is a multiple of 8, to 256."""
        return 0 < head_size <= 256 and head_size % 8 == 0

    @classmethod
    def supports_features(cls, *, alibi: bool, soft_cap: bool) -> str | None:
        """Return None: both."""
        return None
