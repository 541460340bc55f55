"""The replaced attention layer, and the attention backend: importing this registers them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from opdock.nn.attention import Attention
from opdock.nn.attention.kv_cache import LayerCache
from opdock.nn.attention.registry import register_backend
from opdock_tpu import arrays, predicates
from opdock_tpu.attention import NAME
from opdock_tpu.platform import ATTENTION

register_backend(NAME, ATTENTION)


@Attention.register_oot
class TpuAttention(Attention):
    """Attends to the whole of a cache, of which a number says how much is filled.

    The in-tree layer attends to the filled part, which is one position longer in every step. XLA compiles a program for
    each shape, so every generated token would wait for several compilations. Here one program serves all of them.
    """

    def forward(self, query: Tensor, key: Tensor, value: Tensor, cache: LayerCache | None = None) -> Tensor:
        """Do what the in-tree layer does, on tensors of device ``jax`` with shapes that stay."""
        if query.device.type != predicates.DEVICE:
            return super().forward(query, key, value, cache)
        if cache is None and self.key_cache is not None:
            return self._paged(query, key, value)
        batch, past = (1, 0) if cache is None else (cache.batch, cache.length)
        new = query.shape[0] // batch
        heads = (batch, new, self.num_kv_heads, self.head_size)
        k, v = key.view(heads).transpose(1, 2), value.view(heads).transpose(1, 2)
        if cache is not None:
            k, v = (_whole(part) for part in cache.append(k, v))
        return self._attend(query, arrays.of(k), arrays.of(v), past, batch)

    def _attend(self, query: Tensor, k: object, v: object, past: int, batch: int) -> Tensor:
        from opdock_tpu.kernels import formula

        new = query.shape[0] // batch
        q = arrays.of(query).reshape(batch, new, self.num_heads, self.head_size)
        first = np.full(batch, past, np.int32)
        made = formula.attend(
            q,
            k,
            v,
            first,
            first + np.int32(new),
            scale=self.scale,
            window=self.spec.sliding_window,
            soft_cap=self.spec.logits_soft_cap,
            slopes=None if self.alibi_slopes is None else arrays.of(self.alibi_slopes),
            sinks=None if self.sinks is None else arrays.of(self.sinks),
        )
        return arrays.like(made.reshape(query.shape), query)

    def _paged(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend to the requests of the step directly: torchax traces through it, and torch.compile is not used."""
        q = query.view(-1, self.num_heads, self.head_size)
        k, v = (t.view(-1, self.num_kv_heads, self.head_size) for t in (key, value))
        with torch.no_grad():
            return self._now(q, k, v).view(query.shape)


def _whole(part: Tensor) -> Tensor:
    """Return what a view of the filled part of a cache is a view of."""
    from torchax.view import View

    while isinstance(part, View):
        part = part.parent
    return part
