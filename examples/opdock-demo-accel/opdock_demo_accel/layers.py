"""Replaced layers. Importing this module registers them; the platform's ``register_oot`` does.

A replacement is a subclass that keeps the constructor and the parameters, so that any checkpoint still loads.
"""

from __future__ import annotations

import torch
from opdock.nn.attention import Attention, LayerCache
from opdock.nn.layers import RowParallelLinear, SiluAndMul
from torch import Tensor


@SiluAndMul.register_oot
class DemoAccelSiluAndMul(SiluAndMul):
    """A CustomOp: the method that the platform binds is replaced."""

    def forward_oot(self, x: Tensor) -> Tensor:
        """Return silu(first half) * second half."""
        return torch.ops.demo_accel.silu_and_mul(x)


@RowParallelLinear.register_oot
class DemoAccelRowParallelLinear(RowParallelLinear):
    """A PluggableLayer: the class is replaced whole."""

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor | None]:
        """Return y, or (y, bias left to add)."""
        added, left = (None, self.bias) if self.skip_bias_add else (self.bias, None)
        y = torch.ops.demo_accel.linear(x, self.weight, added)
        return (y, left) if self.return_bias else y


@Attention.register_oot
class DemoAccelAttention(Attention):
    """Attention over the cached keys and values, where they are."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, cache: LayerCache | None = None) -> Tensor:
        """Append to the cache and attend to all of it; see Attention."""
        batch = 1 if cache is None else cache.batch
        new = query.shape[0] // batch
        q = query.view(batch, new, self.num_heads, self.head_size).transpose(1, 2)
        k = key.view(batch, new, self.num_kv_heads, self.head_size).transpose(1, 2)
        v = value.view(batch, new, self.num_kv_heads, self.head_size).transpose(1, 2)
        if cache is not None:
            k, v = cache.append(k, v)
        out = torch.ops.demo_accel.attention(q, k, v, self.scale)
        return out.view(batch * new, self.num_heads * self.head_size)
