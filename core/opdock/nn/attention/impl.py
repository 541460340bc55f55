"""What an attention backend computes: the part that runs in each step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from opdock import ir
from opdock.errors import UnsupportedError
from opdock.nn.attention.metadata import AttentionMetadata
from opdock.nn.rotary_and_cache import run_in_place

if TYPE_CHECKING:
    from opdock.nn.attention.attention import Attention

F = TypeVar("F", bound=Callable[..., None])


@dataclass(frozen=True)
class AttentionSpec:
    """The numbers of an attention layer.

    Attributes:
        num_heads: query heads.
        num_kv_heads: key and value heads, a divisor of num_heads.
        head_size: length of a head.
        scale: multiplies the scores.
        sliding_window: positions that a token sees, itself included; None: all before it.
        logits_soft_cap: scores become cap * tanh(score / cap); None: they stay.
        has_alibi: whether slope * (key position - query position) is added to the scores of each head.
        has_sinks: whether each head has a logit that takes part in the softmax and has no value.
        batch_invariant: whether the bits of a request's result may not depend on the other requests.
    """

    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float
    sliding_window: int | None = None
    logits_soft_cap: float | None = None
    has_alibi: bool = False
    has_sinks: bool = False
    batch_invariant: bool = False

    @property
    def plain(self) -> bool:
        """Whether it is causal attention and nothing else."""
        return self.sliding_window is None and self.logits_soft_cap is None and not (self.has_alibi or self.has_sinks)


class AttentionImpl(ABC):
    """Computes attention for one layer; made when the layer's cache is bound.

    Args:
        spec: numbers of the layer.
        layer: it, for its tensors: ``alibi_slopes`` and ``sinks`` (num_heads,) float32 or None, ``k_scale`` and
            ``v_scale`` one float32 each.
    """

    def __init__(self, spec: AttentionSpec, layer: Attention) -> None:
        """Keep both."""
        self.spec, self.layer = spec, layer

    def check_output_scales(self, output_scale: Tensor | None, output_block_scale: Tensor | None) -> None:
        """Raise UnsupportedError if the result is to be quantised."""
        if output_scale is not None or output_block_scale is not None:
            raise UnsupportedError(
                f"{type(self).__name__} writes no quantised output.",
                who=f"layer {self.layer.prefix}",
                remedy="quantise the output in an op of its own.",
            )

    def update_cache(
        self, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata
    ) -> None:
        """Write the step's keys and values, (num_tokens, num_kv_heads, head_size), to their slots.

        Slots below 0 are padding: their rows go nowhere. Both caches are mutated.
        """
        write_slots(key, key_cache, metadata.slot_mapping, self.layer.k_scale)
        write_slots(value, value_cache, metadata.slot_mapping, self.layer.v_scale)

    def why_not_rotary_and_cache(self) -> str:
        """Return why the op ``rotary_and_cache`` may not take the place of ``update_cache``, "" if it may.

        It may where ``update_cache`` is the one of this class, or returns what that does: see ``writes_rows``.
        """
        writes: object = type(self).update_cache
        if writes is AttentionImpl.update_cache or getattr(writes, "writes_rows", False):
            return ""
        return f"{type(self).__name__} writes its cache in a way of its own"

    def rotate_and_update_cache(
        self,
        positions: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        metadata: AttentionMetadata,
        head_size: int,
        cos_sin_cache: Tensor,
        is_neox: bool,  # noqa: FBT001 - as in the op
    ) -> None:
        """Rotate query and key, and write the step's keys and values to their slots: all four are mutated.

        In one kernel where a provider of the op ``rotary_and_cache`` takes these arguments; else one after the other.
        """
        if not self.why_not_rotary_and_cache() and run_in_place(
            positions,
            query,
            key,
            value,
            key_cache,
            value_cache,
            metadata.slot_mapping,
            head_size,
            cos_sin_cache,
            self.layer.k_scale,
            self.layer.v_scale,
            is_neox,
        ):
            return
        rotated = ir.ops.rotary_embedding.maybe_inplace(positions, query, key, head_size, cos_sin_cache, is_neox)
        for given, made in zip((query, key), rotated, strict=True):
            if made is not given:
                given.copy_(made)
        self.update_cache(key.view(value.shape), value, key_cache, value_cache, metadata)

    def prompts_alone(self, query: Tensor, key: Tensor, value: Tensor, metadata: AttentionMetadata) -> Tensor | None:
        """Return the whole result of a step, in memory of its own, or None to have ``forward`` write it.

        For kernels that allocate their result. Only eager code asks; parameters as of ``forward``.
        """
        return None

    @abstractmethod
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
        """Write the attention of each token to ``output``; the caches hold the step's keys and values already.

        Args:
            query: (num_tokens, num_heads, head_size).
            key: (num_tokens, num_kv_heads, head_size), as it was given for the cache.
            value: likewise.
            key_cache: (num_blocks, block_size, num_kv_heads, head_size); only written slots may be used.
            value_cache: likewise.
            metadata: of the step.
            output: like query; every row is written, those of no request with zeros.
        """


def writes_rows(fn: F) -> F:
    """Mark an ``update_cache`` that leaves in the caches what ``AttentionImpl.update_cache`` does; returns it."""
    fn.writes_rows = True  # type: ignore[attr-defined]
    return fn


def write_slots(new: Tensor, cache: Tensor, slots: Tensor, scale: Tensor) -> None:
    """Write rows (tokens, heads, head_size) to slots of a cache; rows whose slot is below 0 go nowhere.

    An 8-bit cache holds the values over ``scale``, limited to what it can hold.
    """
    rows = cache.view(-1, *cache.shape[2:])
    kept = slots >= 0
    if new.is_cuda and torch.cuda.is_current_stream_capturing():
        raise UnsupportedError(
            "Padding rows cannot be left out while a CUDA graph is captured.", remedy="use the TRITON_ATTN backend."
        )
    values = new[kept]
    if cache.dtype.itemsize == 1:
        limit = torch.finfo(cache.dtype).max
        values = (values.float() / scale).clamp(-limit, limit)
        rows.view(torch.uint8)[slots[kept]] = values.to(cache.dtype).view(torch.uint8)
    else:
        rows[slots[kept]] = values.to(cache.dtype)
