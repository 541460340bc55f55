"""Attention on NVIDIA GPUs: the Triton kernels, and cuDNN's for long prompts without a prefix.

FlashInfer and FlashAttention have backends of their own, which are taken only where they are asked for.
"""

# mypy: disable-error-code="no-any-return,call-arg,arg-type"
from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from opdock.nn.attention.backends.triton import TritonAttentionBackend, TritonImpl
from opdock_cuda.attention_choice import NAME

if TYPE_CHECKING:
    from opdock.nn.attention import Attention, AttentionImpl, AttentionMetadata, AttentionSpec

LONG = 512
"""Tokens from which a prompt without a prefix is cuDNN's."""

STEP = 256
"""Lengths are filled up to a multiple of it: cuDNN makes a plan for each length, which takes 75 ms."""

_HALVES = (torch.float16, torch.bfloat16)


def prompts(metadata: AttentionMetadata) -> list[tuple[int, int]]:
    """Return (first row, tokens) of each long prompt without a prefix, where the host knows the lengths."""
    if metadata.query_lens is None or metadata.context_lens is None:
        return []
    found, row = [], 0
    for new, before in zip(metadata.query_lens, metadata.context_lens, strict=True):
        if new >= LONG and not before:
            found.append((row, new))
        row += new
    return found


@functools.cache
def why_not_cudnn(index: int, dtype: torch.dtype, heads: int, kv_heads: int, head_size: int) -> str:
    """Return why cuDNN is not used for such prompts on the GPU of that index, "" if it is."""
    if dtype not in _HALVES:
        return f"no cuDNN attention for {dtype}"
    if torch.cuda.get_device_capability(index) < (9, 0):
        return "cuDNN's attention was measured from compute capability 9.0 on"
    device = torch.device("cuda", index)
    query = torch.empty(1, heads, STEP, head_size, dtype=dtype, device=device)
    key = torch.empty(1, kv_heads, STEP, head_size, dtype=dtype, device=device)
    params = torch.backends.cuda.SDPAParams(query, key, key, None, 0.0, True, heads != kv_heads)
    return "" if torch.backends.cuda.can_use_cudnn_attention(params) else "torch does not use cuDNN for it"


def cudnn_causal(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Return the causal attention of prompts of one length.

    Shapes: query (prompts, tokens, heads, head_size); key and value (prompts, tokens, kv_heads, head_size); returns
    like query, dense.
    """
    tokens = query.shape[1]
    missing = -tokens % STEP
    if missing:  # rows behind the prompt are seen by themselves alone
        query, key, value = (F.pad(t, (0, 0, 0, 0, 0, missing)) for t in (query, key, value))
    # with the log sums it takes another, faster kernel
    found = torch.ops.aten._scaled_dot_product_cudnn_attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        None,
        True,
        0.0,
        True,
        False,
        scale=scale,
    )
    return found[0].transpose(1, 2)[:, :tokens]


class CudaAttentionImpl(TritonImpl):
    """cuDNN for what it is faster at, and Triton for everything else."""

    def __init__(self, spec: AttentionSpec, layer: Attention) -> None:
        """See which of the two may run."""
        super().__init__(spec, layer)
        self._plain = spec.plain and not spec.batch_invariant

    def _for_cudnn(self, query: Tensor, metadata: AttentionMetadata, *, quantised: bool) -> list[tuple[int, int]]:
        if not self._plain or quantised or metadata.max_query_len < LONG:
            return []
        spec = self.spec
        found = prompts(metadata)
        if found and why_not_cudnn(query.get_device(), query.dtype, spec.num_heads, spec.num_kv_heads, spec.head_size):
            return []
        return found

    def prompts_alone(self, query: Tensor, key: Tensor, value: Tensor, metadata: AttentionMetadata) -> Tensor | None:
        """Return cuDNN's own result where the step is prompts of one length and nothing else."""
        cache = self.layer.key_cache
        found = self._for_cudnn(query, metadata, quantised=cache is not None and cache.dtype.itemsize == 1)
        if not found:
            return None
        tokens = found[0][1]
        if len(found) * tokens != metadata.num_tokens or any(new != tokens for _, new in found):
            return None
        q, k, v = (t.unflatten(0, (len(found), tokens)) for t in (query, key, value))
        result = cudnn_causal(q, k, v, self.spec.scale).flatten(0, 1)
        return result if result.is_contiguous() else result.contiguous()

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
        """Start the kernels; see the base."""
        found = self._for_cudnn(query, metadata, quantised=key_cache.dtype.itemsize == 1)
        taken = sum(new for _, new in found)
        if taken < metadata.num_tokens:
            others = {"elsewhere": LONG} if found else {}
            self.attend(query, key_cache, value_cache, metadata, output, **others)
        for row, new in found:
            part = slice(row, row + new)
            output[part] = cudnn_causal(query[None, part], key[None, part], value[None, part], self.spec.scale)[0]


class CudaAttentionBackend(TritonAttentionBackend):
    """What the Triton backend takes."""

    @staticmethod
    def get_name() -> str:
        """Return its name."""
        return NAME

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl]:
        """Return what computes."""
        return CudaAttentionImpl
