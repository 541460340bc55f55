"""Attention on AMD GPUs: the host's Triton kernels, cut so that they fit.

The host cuts them for NVIDIA's shared memory, where a kernel may have 227 KiB. On gfx90a and gfx942 it is 64 KiB:
decoded tokens with heads of 128 in bfloat16 would want 66,048 bytes on gfx942, and would not start. Here one pair of
tiles is in flight, and a pair takes 32 KiB at most.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

from opdock.nn.attention.backends.triton import TritonAttentionBackend, TritonImpl
from opdock_rocm.attention_choice import NAME

if TYPE_CHECKING:
    from torch import Tensor

    from opdock.nn.attention import AttentionImpl, AttentionMetadata, AttentionSpec
    from opdock.nn.attention.backend import AttentionSelectorConfig
    from opdock.nn.kernels.triton.attention_launch import Tuning
    from opdock.platforms.enums import DeviceCapability

PAIR_BYTES = 32 * 1024
"""Of shared memory, for a tile of keys and one of values."""

TF32 = (9, 4)
"""The capability of the GPUs for which Triton takes ``input_precision="tf32"``, as the host has it in 16 bits."""

STAGES = 2
"""Tiles in flight, the one that is computed with included: more spill registers on gfx942."""


def fit(tuning: Tuning, head_size: int, itemsize: int) -> Tuning:
    """Return a tuning whose tiles fit into the shared memory of every AMD GPU; pure.

    Args:
        tuning: the host's.
        head_size: columns of a head.
        itemsize: bytes of an element.
    """
    padded = max(16, 1 << (head_size - 1).bit_length())
    tile = tuning.tile
    while tile > 16 and 2 * tile * padded * itemsize > PAIR_BYTES:
        tile //= 2
    return dataclasses.replace(tuning, tile=tile, stages=STAGES)


def for_single(spec: AttentionSpec, requests: int, max_seq_len: int, units: int, itemsize: int) -> Tuning:
    """Return the tuning for requests of one token; arguments as those of the host's ``tuning_for_single``."""
    from opdock.nn.kernels.triton.attention_launch import tuning_for_single

    return fit(tuning_for_single(spec, requests, max_seq_len, units, itemsize=itemsize), spec.head_size, itemsize)


def for_prompts(spec: AttentionSpec, itemsize: int) -> Tuning:
    """Return the tuning for requests of several tokens."""
    from opdock.nn.kernels.triton.attention_launch import tuning_for_prompts

    return fit(tuning_for_prompts(spec, itemsize=itemsize), spec.head_size, itemsize)


class RocmAttentionImpl(TritonImpl):
    """The kernels with tunings of this package."""

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
        """Start the kernels; see the base."""
        from opdock.nn.kernels.triton.attention_launch import units_of

        layer, spec, itemsize = self.layer, self.spec, query.element_size()
        units = units_of(query.get_device())
        self._attend(
            query,
            key_cache,
            value_cache,
            metadata,
            output,
            spec,
            k_scale=layer.k_scale,
            v_scale=layer.v_scale,
            counters=self._counters,
            alibi_slopes=layer.alibi_slopes,
            sinks=layer.sinks,
            single=for_single(spec, metadata.num_requests, metadata.max_seq_len, units, itemsize),
            prompts=for_prompts(spec, itemsize),
            elsewhere=elsewhere,
        )


class RocmAttentionBackend(TritonAttentionBackend):
    """What the host's Triton backend takes, where Triton takes the host's kernel."""

    @staticmethod
    def get_name() -> str:
        """Return its name."""
        return NAME

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl]:
        """Return what computes."""
        return RocmAttentionImpl

    @classmethod
    def supports_combination(
        cls, config: AttentionSelectorConfig, device_capability: DeviceCapability | None
    ) -> str | None:
        """Return why the kernel cannot be compiled for this GPU, or None."""
        found = device_capability and (device_capability.major, device_capability.minor)
        if found and found != TF32 and config.dtype is not torch.float32:
            return "the host's kernel asks for products in tf32, which Triton has for gfx942 alone"
        return None
