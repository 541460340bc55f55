"""Causal attention over a contiguous cache."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from opdock.errors import ConfigError
from opdock.nn.attention.kv_cache import LayerCache
from opdock.registry import PluggableLayer


@PluggableLayer.register("attention")
class Attention(PluggableLayer):
    """softmax(scale * q @ k.T + causal mask) @ v for each head; groups of query heads share keys and values.

    Shapes: query (num_tokens, num_heads * head_size); key and value (num_tokens, num_kv_heads * head_size);
    num_tokens is batch * new positions, sequence by sequence; returns like query.

    Args:
        num_heads: query heads.
        head_size: length of a head.
        scale: multiplies the scores, no unit, normally head_size ** -0.5.
        num_kv_heads: key and value heads, a divisor of num_heads; None: as many.
        prefix: the layer's path in its model.

    Raises: ConfigError if the numbers of heads do not divide.
    """

    def __init__(
        self, num_heads: int, head_size: int, scale: float, num_kv_heads: int | None = None, prefix: str = ""
    ) -> None:
        """Keep the numbers."""
        super().__init__()
        self.num_heads, self.head_size, self.scale, self.prefix = num_heads, head_size, scale, prefix
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if self.num_kv_heads < 1 or num_heads % self.num_kv_heads:
            raise ConfigError(
                f"{num_heads} query heads cannot share {self.num_kv_heads} key and value heads.",
                remedy="use a number of key and value heads that divides the number of query heads.",
            )
        self.group = num_heads // self.num_kv_heads

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cache: LayerCache | None = None
    ) -> torch.Tensor:
        """Attend to the cached positions and to those before and at each new one; append to the cache.

        Without a cache, all tokens are one sequence from its beginning.
        """
        batch, past = (1, 0) if cache is None else (cache.batch, cache.length)
        new = query.shape[0] // batch
        heads = (batch, new, self.num_kv_heads, self.head_size)
        k, v = key.view(heads).transpose(1, 2), value.view(heads).transpose(1, 2)
        if cache is not None:
            k, v = cache.append(k, v)
        if new == 1:
            # query heads of a group see the same keys: as rows of one matrix they need no mask and no copies
            q = query.reshape(batch, self.num_kv_heads, self.group, self.head_size)
            out = F.scaled_dot_product_attention(q, k, v, scale=self.scale)
            return out.reshape(batch, self.num_heads * self.head_size)
        q = query.view(batch, new, self.num_heads, self.head_size).transpose(1, 2)
        mask = None
        if past:
            mask = torch.ones(new, past + new, dtype=torch.bool, device=q.device).tril(past)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=self.scale, enable_gqa=self.group > 1
        )
        return out.transpose(1, 2).reshape(batch * new, self.num_heads * self.head_size)

    def extra_repr(self) -> str:
        """Return what repr shows."""
        return f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, head_size={self.head_size}"
