"""Rotary position embedding, plain and with the scalings of longer contexts.

The table of cosines and sines is computed in float32, in the order that the models were trained with, and
then cast: its values belong to the model as its weights do, so a float64 run rotates by the same angles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from opdock.errors import UnsupportedError, suggest
from opdock.registry import CustomOp


@CustomOp.register("rotary_embedding")
class RotaryEmbedding(CustomOp):
    """Rotate the pairs of each head of query and key by angles that grow with the position.

    Shapes: positions (num_tokens,) int64; query (num_tokens, num_heads * head_size); key (num_tokens,
    num_kv_heads * head_size). Mutates: query and key are donated.

    Args:
        head_size: length of a head.
        rotary_dim: length of its rotated part, even, <= head_size; the rest passes through.
        max_position_embeddings: number of positions in the table.
        base: of the geometric series of frequencies.
        is_neox_style: True pairs i with i + rotary_dim / 2; False pairs 2i with 2i + 1.
        dtype: of the table; None takes torch's default.
    """

    def __init__(
        self,
        head_size: int,
        rotary_dim: int,
        max_position_embeddings: int,
        base: float,
        is_neox_style: bool = True,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Compute the table."""
        super().__init__()
        self.head_size = head_size
        self.rotary_dim = rotary_dim
        self.max_position_embeddings = max_position_embeddings
        self.base = base
        self.is_neox_style = is_neox_style
        self.dtype = dtype or torch.get_default_dtype()
        self.register_buffer("cos_sin_cache", self._compute_cos_sin_cache().to(self.dtype), persistent=False)

    def _compute_inv_freq(self, base: float) -> torch.Tensor:
        """Return the angle per position of each pair, (rotary_dim / 2,), float32, radians."""
        steps = torch.arange(0, self.rotary_dim, 2, dtype=torch.float32)
        return 1.0 / (base ** (steps / self.rotary_dim))

    def _compute_cos_sin_cache(self) -> torch.Tensor:
        """Return the table, (max_position_embeddings, rotary_dim), float32: cosines, then sines."""
        positions = torch.arange(self.max_position_embeddings, dtype=torch.float32)
        angles = positions[:, None] * self._compute_inv_freq(self.base)
        return torch.cat((angles.cos(), angles.sin()), dim=-1)

    def forward_native(
        self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rotated query and key."""
        return self.ir.rotary_embedding.maybe_inplace(  # type: ignore[no-any-return]
            positions, query, key, self.head_size, self._buffers["cos_sin_cache"], self.is_neox_style
        )

    def extra_repr(self) -> str:
        """Return what repr shows."""
        return (
            f"head_size={self.head_size}, rotary_dim={self.rotary_dim}, base={self.base}, "
            f"max_position_embeddings={self.max_position_embeddings}, is_neox_style={self.is_neox_style}"
        )


class LinearScalingRotaryEmbedding(RotaryEmbedding):
    """Every angle divided by one factor: the context grows by it.

    Args:
        head_size, rotary_dim, max_position_embeddings, base, is_neox_style, dtype: see RotaryEmbedding.
        scaling_factor: the divisor, no unit.
    """

    def __init__(
        self,
        head_size: int,
        rotary_dim: int,
        max_position_embeddings: int,
        base: float,
        is_neox_style: bool,
        scaling_factor: float,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Compute the table."""
        self.scaling_factor = scaling_factor  # read while the base class computes the table
        super().__init__(head_size, rotary_dim, max_position_embeddings, base, is_neox_style, dtype)

    def _compute_inv_freq(self, base: float) -> torch.Tensor:
        return super()._compute_inv_freq(base) / float(self.scaling_factor)


class Llama3RotaryEmbedding(RotaryEmbedding):
    """Long waves divided by a factor, short waves kept, a smooth passage between.

    Args:
        head_size, rotary_dim, max_position_embeddings, base, is_neox_style, dtype: see RotaryEmbedding.
        scaling_factor: divisor of the long waves, no unit.
        low_freq_factor: waves longer than orig_max_position / low_freq_factor positions are long.
        high_freq_factor: waves shorter than orig_max_position / high_freq_factor positions are short.
        orig_max_position: context that the model was first trained with, in positions.
    """

    def __init__(
        self,
        head_size: int,
        rotary_dim: int,
        max_position_embeddings: int,
        base: float,
        is_neox_style: bool,
        dtype: torch.dtype | None,
        scaling_factor: float,
        low_freq_factor: float,
        high_freq_factor: float,
        orig_max_position: int,
    ) -> None:
        """Compute the table."""
        self.scaling_factor = scaling_factor
        self.low_freq_factor = low_freq_factor
        self.high_freq_factor = high_freq_factor
        self.orig_max_position = orig_max_position
        super().__init__(head_size, rotary_dim, max_position_embeddings, base, is_neox_style, dtype)

    def _compute_inv_freq(self, base: float) -> torch.Tensor:
        plain = super()._compute_inv_freq(base)
        waves = 2 * math.pi / plain
        longest_short = self.orig_max_position / self.high_freq_factor
        shortest_long = self.orig_max_position / self.low_freq_factor
        span = self.high_freq_factor - self.low_freq_factor
        scaled = torch.where(waves > shortest_long, plain / self.scaling_factor, plain)
        smooth = (self.orig_max_position / waves - self.low_freq_factor) / (span or 1.0)
        between = (1 - smooth) * scaled / self.scaling_factor + smooth * scaled
        medium = (waves >= longest_short) & (waves <= shortest_long)
        return torch.where(medium, between, scaled)


class FrequencyFactorRotaryEmbedding(RotaryEmbedding):
    """Each pair's angle divided by a factor of its own, as GGUF files store a scaled table.

    Args:
        head_size, rotary_dim, max_position_embeddings, base, is_neox_style, dtype: see RotaryEmbedding.
        factors: rotary_dim / 2 divisors, no unit.
    """

    def __init__(
        self,
        head_size: int,
        rotary_dim: int,
        max_position_embeddings: int,
        base: float,
        is_neox_style: bool,
        dtype: torch.dtype | None,
        factors: Sequence[float],
    ) -> None:
        """Compute the table."""
        self.factors = tuple(factors)
        super().__init__(head_size, rotary_dim, max_position_embeddings, base, is_neox_style, dtype)

    def _compute_inv_freq(self, base: float) -> torch.Tensor:
        return super()._compute_inv_freq(base) / torch.tensor(self.factors, dtype=torch.float32)


ROPE_TYPES = ("default", "linear", "llama3", "factors", "yarn")


def get_rope(
    head_size: int,
    rotary_dim: int,
    max_position: int,
    base: float,
    is_neox_style: bool = True,
    rope_scaling: Mapping[str, Any] | None = None,
    dtype: torch.dtype | None = None,
) -> RotaryEmbedding:
    """Return the rotary embedding that a model's configuration asks for.

    Args:
        head_size: length of a head.
        rotary_dim: length of its rotated part.
        max_position: number of positions in the table.
        base: of the geometric series of frequencies.
        is_neox_style: which elements make a pair; see RotaryEmbedding.
        rope_scaling: ``rope_type`` and its numbers, under the names of a Hugging Face config.json.
        dtype: of the table; None takes torch's default.

    Raises: UnsupportedError for another ``rope_type``.
    """
    scaling = rope_scaling or {}
    kind = scaling.get("rope_type", scaling.get("type", "default")) or "default"
    if kind == "default":
        return RotaryEmbedding(head_size, rotary_dim, max_position, base, is_neox_style, dtype)
    if kind == "linear":
        return LinearScalingRotaryEmbedding(
            head_size, rotary_dim, max_position, base, is_neox_style, scaling["factor"], dtype
        )
    if kind == "llama3":
        return Llama3RotaryEmbedding(
            head_size,
            rotary_dim,
            max_position,
            base,
            is_neox_style,
            dtype,
            scaling["factor"],
            scaling["low_freq_factor"],
            scaling["high_freq_factor"],
            scaling["original_max_position_embeddings"],
        )
    if kind == "factors":
        return FrequencyFactorRotaryEmbedding(
            head_size, rotary_dim, max_position, base, is_neox_style, dtype, scaling["factors"]
        )
    if kind == "yarn":
        from opdock.nn.layers.rotary_yarn import YarnRotaryEmbedding

        return YarnRotaryEmbedding(head_size, rotary_dim, max_position, base, is_neox_style, dtype, scaling)
    raise UnsupportedError(f"No rotary embedding of type {kind!r}.", remedy=suggest(str(kind), ROPE_TYPES))
