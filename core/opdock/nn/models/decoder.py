"""One family of decoders: norms before attention and MLP, rotary positions, grouped heads, a gated MLP."""

from __future__ import annotations

import torch
from torch import nn

from opdock.nn.attention import Attention, KVCache, LayerCache
from opdock.nn.layers import (
    LogitsProcessor,
    ParallelLMHead,
    QKVParallelLinear,
    RMSNorm,
    RotaryEmbedding,
    RowParallelLinear,
    VocabParallelEmbedding,
)
from opdock.nn.models.blocks import build_attention, build_cache, build_mlp, build_rotary
from opdock.nn.models.config import ModelConfig


class DecoderAttention(nn.Module):
    """Projections, the optional norm of each head, rotation, attention, projection."""

    def __init__(self, config: ModelConfig, rotary: RotaryEmbedding, prefix: str) -> None:
        """Build the layers."""
        super().__init__()
        self.head_dim = config.head_dim
        self.q_size = config.num_heads * config.head_dim
        self.kv_size = config.num_kv_heads * config.head_dim
        self.qkv_proj = QKVParallelLinear(
            config.hidden_size,
            config.head_dim,
            config.num_heads,
            config.num_kv_heads,
            bias=config.qkv_bias,
            quant_config=config.quant_config,
            prefix=f"{prefix}.qkv_proj",
        )
        self.o_proj = RowParallelLinear(
            self.q_size,
            config.hidden_size,
            bias=config.o_bias,
            quant_config=config.quant_config,
            prefix=f"{prefix}.o_proj",
        )
        self.rotary_emb = rotary
        self.attn = Attention(
            config.num_heads,
            config.head_dim,
            config.head_dim**-0.5,
            config.num_kv_heads,
            prefix=f"{prefix}.attn",
        )
        self.qk_norm = config.qk_norm
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, eps=config.rms_norm_eps)
            self.k_norm = RMSNorm(config.head_dim, eps=config.rms_norm_eps)

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor, cache: LayerCache | None) -> torch.Tensor:
        """Return the attention's output, (num_tokens, hidden)."""
        qkv, _ = self.qkv_proj(hidden_states)
        q, k, v = qkv.split((self.q_size, self.kv_size, self.kv_size), dim=-1)
        if self.qk_norm:
            q = self.q_norm(q.unflatten(-1, (-1, self.head_dim))).flatten(-2)
            k = self.k_norm(k.unflatten(-1, (-1, self.head_dim))).flatten(-2)
        q, k = self.rotary_emb(positions, q, k)
        out, _ = self.o_proj(self.attn(q, k, v, cache))
        return out  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Attention and MLP, each behind a norm that also adds what came before to the residual."""

    def __init__(self, config: ModelConfig, rotary: RotaryEmbedding, prefix: str, index: int) -> None:
        """Build the layers of layer ``index``."""
        super().__init__()
        self.self_attn = build_attention(config, rotary, f"{prefix}.self_attn", DecoderAttention)
        self.mlp = build_mlp(config, index, f"{prefix}.mlp")
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self,
        positions: torch.Tensor,
        hidden_states: torch.Tensor,
        residual: torch.Tensor | None,
        cache: LayerCache | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (what is to be added, the residual so far)."""
        if residual is None:
            residual = hidden_states
            hidden_states = self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        hidden_states = self.self_attn(positions, hidden_states, cache)
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        return self.mlp(hidden_states), residual


class DecoderModel(nn.Module):
    """Embedding, layers and the last norm."""

    def __init__(self, config: ModelConfig, prefix: str = "model") -> None:
        """Build the layers; all share one rotary table."""
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, config.hidden_size, prefix=f"{prefix}.embed_tokens"
        )
        rotary = build_rotary(config)
        self.layers = nn.ModuleList(
            DecoderLayer(config, rotary, f"{prefix}.layers.{i}", i) for i in range(config.num_layers)
        )
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, cache: KVCache | None = None) -> torch.Tensor:
        """Return the normalised hidden rows, (num_tokens, hidden)."""
        hidden_states, residual = self.embed_tokens(input_ids), None
        if cache is None:
            for layer in self.layers:
                hidden_states, residual = layer(positions, hidden_states, residual, None)
        else:
            for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
                hidden_states, residual = layer(positions, hidden_states, residual, layer_cache)
        hidden_states, _ = self.norm(hidden_states, residual)
        return hidden_states  # type: ignore[no-any-return]


class CausalDecoder(nn.Module):
    """A decoder that predicts the next token.

    Args:
        config: its facts. Weights are left uninitialised, in torch's default dtype and device.
    """

    def __init__(self, config: ModelConfig) -> None:
        """Build the layers."""
        super().__init__()
        self.config = config
        self.model = DecoderModel(config)
        self.lm_head = ParallelLMHead(config.vocab_size, config.hidden_size, prefix="lm_head")
        if config.tie_word_embeddings:
            self.lm_head = self.lm_head.tie_weights(self.model.embed_tokens)
        self.logits_processor = LogitsProcessor(config.vocab_size)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, cache: KVCache | None = None) -> torch.Tensor:
        """Return the hidden rows of new tokens; with a cache, they are appended to it.

        Args:
            input_ids: (num_tokens,) int64; with a cache, batch * new positions, sequence by sequence.
            positions: (num_tokens,) int64, from 0.
            cache: keys and values of the positions before.
        """
        if cache is None:
            hidden_states: torch.Tensor = self.model(input_ids, positions)
            return hidden_states
        count = input_ids.shape[0] // cache.batch
        cache.require_room(count)
        hidden_states = self.model(input_ids, positions, cache)
        cache.advance(count)
        return hidden_states

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the logits of hidden rows, (rows, vocab_size)."""
        logits: torch.Tensor = self.logits_processor(self.lm_head, hidden_states)
        return logits

    def new_cache(self, max_len: int, *, batch: int = 1) -> KVCache:
        """Return an empty cache for ``max_len`` positions of ``batch`` sequences."""
        weight = self.model.embed_tokens.weight
        return build_cache(self.config, max_len, batch=batch, dtype=weight.dtype, device=weight.device)
