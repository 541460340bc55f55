"""Which attention and which MLP a layer of a decoder has."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

from opdock.nn.attention import KVCache
from opdock.nn.layers import (
    GeluAndMul,
    MergedColumnParallelLinear,
    RotaryEmbedding,
    RowParallelLinear,
    SiluAndMul,
    get_rope,
)

if TYPE_CHECKING:
    from opdock.nn.models.config import ModelConfig


class DecoderMLP(nn.Module):
    """down(act(gate(x)) * up(x)).

    Args:
        config: the model's facts.
        prefix: the layer's path in its model.
        intermediate_size: length of a row between the two matrices; None takes the configuration's.
    """

    def __init__(self, config: ModelConfig, prefix: str, intermediate_size: int | None = None) -> None:
        """Build the layers."""
        super().__init__()
        inner = config.intermediate_size if intermediate_size is None else intermediate_size
        self.gate_up_proj = MergedColumnParallelLinear(
            config.hidden_size,
            [inner] * 2,
            bias=config.mlp_bias,
            quant_config=config.quant_config,
            prefix=f"{prefix}.gate_up_proj",
        )
        self.down_proj = RowParallelLinear(
            inner,
            config.hidden_size,
            bias=config.mlp_bias,
            quant_config=config.quant_config,
            prefix=f"{prefix}.down_proj",
        )
        if config.hidden_act == "silu":
            self.act_fn: nn.Module = SiluAndMul()
        else:
            self.act_fn = GeluAndMul("tanh" if config.hidden_act == "gelu_pytorch_tanh" else "none")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output, (num_tokens, hidden)."""
        gate_up, _ = self.gate_up_proj(x)
        out, _ = self.down_proj(self.act_fn(gate_up))
        return out  # type: ignore[no-any-return]


def build_mlp(config: ModelConfig, index: int, prefix: str) -> nn.Module:
    """Return the MLP of layer ``index``, experts where it has them: rows in, rows out, (num_tokens, hidden)."""
    if config.mixture is not None and index in config.mixture.layers:
        from opdock.nn.moe.block import build_mixture

        return build_mixture(config, prefix)
    return DecoderMLP(config, prefix)


def build_attention(
    config: ModelConfig,
    rotary: RotaryEmbedding,
    prefix: str,
    usual: Callable[[ModelConfig, RotaryEmbedding, str], nn.Module],
) -> nn.Module:
    """Return the attention of a layer; ``usual`` builds the one with keys and values of each head."""
    if config.latent is None:
        return usual(config, rotary, prefix)
    from opdock.nn.layers.mla import MultiHeadLatentAttention

    return MultiHeadLatentAttention(
        config.hidden_size, config.num_heads, config.latent, rotary, quant_config=config.quant_config, prefix=prefix
    )


def build_rotary(config: ModelConfig) -> RotaryEmbedding:
    """Return the rotation that all layers share."""
    return get_rope(
        config.head_dim,
        config.rotary_dim,
        config.max_position,
        config.rope_theta,
        config.latent is None or config.latent.neox,
        rope_scaling=config.rope_scaling,
    )


def build_cache(config: ModelConfig, max_len: int, *, batch: int, dtype: torch.dtype, device: torch.device) -> KVCache:
    """Return an empty cache for ``max_len`` positions of ``batch`` sequences of one length."""
    if config.latent is not None:
        from opdock.nn.layers.mla import LatentCache

        size = config.latent.kv_rank + config.latent.rope_dim
        return LatentCache(
            num_layers=config.num_layers, max_len=max_len, size=size, batch=batch, dtype=dtype, device=device
        )
    return KVCache(
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        max_len=max_len,
        head_size=config.head_dim,
        batch=batch,
        dtype=dtype,
        device=device,
    )
