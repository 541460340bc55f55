"""Multi-head latent attention: keys and values of all heads are made from one short row of each token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn

from opdock import env
from opdock.errors import UnsupportedError
from opdock.nn.attention import Attention, KVCache, LayerCache
from opdock.nn.layers.layernorm import RMSNorm
from opdock.nn.layers.linear import ColumnParallelLinear, ReplicatedLinear, RowParallelLinear
from opdock.nn.layers.rotary import RotaryEmbedding
from opdock.registry import PluggableLayer

if TYPE_CHECKING:
    from opdock.nn.models.facts import LatentConfig
    from opdock.nn.quantization.config import QuantizationConfig


class LatentCache(KVCache):
    """The latent rows of all layers: of each position the normalised row and the rotated part of the key, no more.

    Args:
        num_layers: number of layers.
        max_len: positions that fit.
        size: length of a position's row.
        batch: number of sequences, all of one length.
        dtype, device: of the tensors; None takes torch's default.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        max_len: int,
        size: int,
        batch: int = 1,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        """Allocate, uninitialised."""
        shape = (batch, 1, max_len + 1, size)  # one more than fits: see KVCache
        self.batch, self.max_len, self.length = batch, max_len, 0
        self.layers = tuple(
            LatentLayerCache(self, torch.empty(shape, dtype=dtype, device=device)) for _ in range(num_layers)
        )


class LatentLayerCache(LayerCache):
    """One layer's part of a LatentCache."""

    __slots__ = ()

    def __init__(self, cache: LatentCache, rows: torch.Tensor) -> None:
        """Keep the tensor, (batch, 1, max_len + 1, size)."""
        super().__init__(cache, rows, rows)

    def append_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Write this step's rows, (batch, 1, new positions, size), and return a view of all up to and with them."""
        start, count = self._cache.length, rows.shape[2]
        self._keys.narrow(2, start, count).copy_(rows)
        return self._keys.narrow(2, 0, start + count)


@PluggableLayer.register("multi_head_latent_attention")
class MultiHeadLatentAttention(PluggableLayer):
    """Causal attention whose keys and values are linear functions of a latent row of each token.

    latent = norm(x @ A), of kv_rank numbers, and a key part that is rotated and that all heads share; a head's key is
    (latent @ K, rotated part), its value latent @ V. A step of one token multiplies the query by K and the
    attention's output by V, and never makes the keys and values of the positions before; a longer step makes them.

    Shapes: positions (num_tokens,) int64; hidden_states (num_tokens, hidden_size); returns like hidden_states;
    num_tokens is batch * new positions, sequence by sequence.

    Args:
        hidden_size: length of a hidden row.
        num_heads: query heads.
        latent: the sizes.
        rotary: rotates heads of ``latent.rope_dim`` numbers.
        eps: epsilon of the norms.
        quant_config: how the projections hold their weights, kv_b_proj excepted; None: as they are.
        prefix: the layer's path in its model.

    Raises: UnsupportedError, with the layer's name, under ``VLLM_BATCH_INVARIANT=1``.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        latent: LatentConfig,
        rotary: RotaryEmbedding,
        *,
        eps: float = 1e-6,
        quant_config: QuantizationConfig | None = None,
        prefix: str = "",
    ) -> None:
        """Build the layers."""
        super().__init__()
        if env.batch_invariant():
            raise UnsupportedError(
                "Latent attention does not declare batch invariance, which VLLM_BATCH_INVARIANT=1 asks for.",
                who=f"layer {prefix}",
                why="Its products over all heads may sum in another order for another number of tokens.",
                remedy="unset VLLM_BATCH_INVARIANT, or use a model with another attention.",
            )
        self.num_heads, self.latent, self.prefix = num_heads, latent, prefix
        self.head_dim = latent.nope_dim + latent.rope_dim
        self.scale = self.head_dim**-0.5 * latent.scale_factor
        q_size, inner = num_heads * self.head_dim, latent.nope_dim + latent.value_dim
        options: dict[str, Any] = {"quant_config": quant_config}
        if latent.q_rank is None:
            self.q_proj = ColumnParallelLinear(hidden_size, q_size, bias=False, prefix=f"{prefix}.q_proj", **options)
        else:
            rank = latent.q_rank
            self.q_a_proj = ReplicatedLinear(
                hidden_size, rank, bias=latent.bias, prefix=f"{prefix}.q_a_proj", **options
            )
            self.q_a_layernorm = RMSNorm(rank, eps=eps)
            self.q_b_proj = ColumnParallelLinear(rank, q_size, bias=False, prefix=f"{prefix}.q_b_proj", **options)
        self.kv_a_proj_with_mqa = ReplicatedLinear(
            hidden_size,
            latent.kv_rank + latent.rope_dim,
            bias=latent.bias,
            prefix=f"{prefix}.kv_a_proj_with_mqa",
            **options,
        )
        self.kv_a_layernorm = RMSNorm(latent.kv_rank, eps=eps)
        # kept as it is: a step of one token multiplies by parts of it
        self.kv_b_proj = ColumnParallelLinear(
            latent.kv_rank, num_heads * inner, bias=False, prefix=f"{prefix}.kv_b_proj"
        )
        self.o_proj = RowParallelLinear(
            num_heads * latent.value_dim, hidden_size, bias=latent.bias, prefix=f"{prefix}.o_proj", **options
        )
        self.rotary_emb: nn.Module = rotary
        self.attn = Attention(
            num_heads, latent.kv_rank + latent.rope_dim, self.scale, num_kv_heads=1, prefix=f"{prefix}.attn"
        )

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor, cache: LayerCache | None) -> torch.Tensor:
        """Return the attention's output; append the latent rows to the cache.

        With a paged cache bound, and none given, the tokens are those of the step in force. Without any cache, all
        tokens are one sequence from its beginning.
        """
        sizes, tokens = self.latent, hidden_states.shape[0]
        if sizes.q_rank is None:
            q, _ = self.q_proj(hidden_states)
        else:
            lower, _ = self.q_a_proj(hidden_states)
            q, _ = self.q_b_proj(self.q_a_layernorm(lower))
        joint, _ = self.kv_a_proj_with_mqa(hidden_states)
        rows, key_part = joint.split((sizes.kv_rank, sizes.rope_dim), dim=-1)
        rows = self.kv_a_layernorm(rows.contiguous())
        q_nope, q_rope = q.view(tokens, self.num_heads, self.head_dim).split((sizes.nope_dim, sizes.rope_dim), dim=-1)
        q_rope, key_part = self.rotary_emb(positions, q_rope.reshape(tokens, -1), key_part.contiguous())
        q_rope = q_rope.view(tokens, self.num_heads, sizes.rope_dim)
        both = torch.cat((rows, key_part), dim=-1)
        if cache is None and self.attn.key_cache is not None:
            attended = self._paged(q_nope, q_rope, both)
        else:
            batch = 1 if cache is None else cache.batch
            both = both.view(batch, 1, tokens // batch, -1)
            if cache is not None:
                both = cache.append_rows(both)  # type: ignore[attr-defined]
            attend = self._absorbed if tokens == batch and self._plain() else self._expanded
            attended = attend(q_nope, q_rope, both)
        out, _ = self.o_proj(attended)
        return out  # type: ignore[no-any-return]

    def _plain(self) -> bool:
        """Return whether the matrix that makes keys and values lies there as it is, not quantised."""
        weight = self.kv_b_proj._parameters.get("weight")
        return weight is not None and weight.dtype.itemsize > 1 and weight.shape[-1] == self.latent.kv_rank

    def _absorbed(self, q_nope: torch.Tensor, q_rope: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Attend from one new token of each sequence, in the space of the latent rows."""
        query = self._inside(q_nope, q_rope).unsqueeze(1)
        # all heads see the same rows: as rows of one matrix they need no copies
        out = F.scaled_dot_product_attention(query, rows, rows[..., : self.latent.kv_rank], scale=self.scale)
        return self._values(out.squeeze(1))

    def _paged(self, q_nope: torch.Tensor, q_rope: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Attend to the requests of a step, in the space of the latent rows: one key head that all heads share.

        The paged cache holds the rows twice, as keys and as values.
        """
        if not self._plain():
            raise UnsupportedError(
                "Latent attention over a paged cache needs kv_b_proj as it is, and it is quantised.",
                who=f"layer {self.prefix}",
                remedy="leave kv_b_proj out of the quantisation, or generate without a batch.",
            )
        out = self.attn(self._inside(q_nope, q_rope).flatten(1), rows, rows)
        return self._values(out.view(rows.shape[0], self.num_heads, -1)[..., : self.latent.kv_rank])

    def _matrices(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what makes keys and values, (heads, nope_dim or value_dim, kv_rank) each."""
        matrix: torch.Tensor = self.kv_b_proj.weight  # type: ignore[assignment]
        weight = matrix.view(self.num_heads, -1, self.latent.kv_rank)
        to_key, to_value = weight.split((self.latent.nope_dim, self.latent.value_dim), dim=1)
        return to_key, to_value

    def _inside(self, q_nope: torch.Tensor, q_rope: torch.Tensor) -> torch.Tensor:
        """Return queries for latent rows, (tokens, heads, kv_rank + rope_dim)."""
        made = torch.bmm(q_nope.transpose(0, 1), self._matrices()[0]).transpose(0, 1)
        return torch.cat((made, q_rope), dim=-1)

    def _values(self, out: torch.Tensor) -> torch.Tensor:
        """Return the heads' outputs side by side, from those in the space of the latent rows."""
        values = torch.bmm(out.transpose(0, 1), self._matrices()[1].transpose(1, 2))  # heads first
        return values.transpose(0, 1).flatten(1)

    def _expanded(self, q_nope: torch.Tensor, q_rope: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Attend with the keys and values of every position made anew."""
        sizes, batch, length = self.latent, rows.shape[0], rows.shape[2]
        new = q_nope.shape[0] // batch
        latents, key_part = rows.squeeze(1).split((sizes.kv_rank, sizes.rope_dim), dim=-1)
        made, _ = self.kv_b_proj(latents)
        k_nope, values = made.view(batch, length, self.num_heads, -1).split((sizes.nope_dim, sizes.value_dim), dim=-1)
        shared = key_part.unsqueeze(2).expand(-1, -1, self.num_heads, -1)
        keys = torch.cat((k_nope, shared), dim=-1).transpose(1, 2)
        query = torch.cat((q_nope, q_rope), dim=-1).view(batch, new, self.num_heads, -1).transpose(1, 2)
        mask = None
        if new != length:
            mask = torch.ones(new, length, dtype=torch.bool, device=query.device).tril(length - new)
        out = F.scaled_dot_product_attention(
            query, keys, values.transpose(1, 2), attn_mask=mask, is_causal=mask is None, scale=self.scale
        )
        return out.transpose(1, 2).reshape(q_nope.shape[0], -1)

    def extra_repr(self) -> str:
        """Return what repr shows."""
        return f"num_heads={self.num_heads}, {self.latent}"
