"""YaRN: fast pairs turn as they were trained, slow ones slower by a factor, with a ramp between."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from opdock.nn.layers.rotary import RotaryEmbedding


class YarnRotaryEmbedding(RotaryEmbedding):
    """Angles between those of the trained context and those divided by a factor; cosines and sines scaled.

    A pair that turns more than ``beta_fast`` times in the trained context keeps its angle, one that turns less than
    ``beta_slow`` times has it divided by ``factor``; between, a linear ramp over the pairs.

    Args:
        head_size, rotary_dim, max_position_embeddings, base, is_neox_style, dtype: see RotaryEmbedding.
        scaling: numbers under the names of a Hugging Face config.json: ``factor`` and
            ``original_max_position_embeddings`` (positions), and optionally ``beta_fast`` (32), ``beta_slow`` (1),
            ``attention_factor``, ``mscale``, ``mscale_all_dim``, ``truncate`` (True: the ramp begins and ends at whole
            pairs).

    Source: Peng et al. 2023, arXiv:2309.00071.
    """

    def __init__(
        self,
        head_size: int,
        rotary_dim: int,
        max_position_embeddings: int,
        base: float,
        is_neox_style: bool,
        dtype: torch.dtype | None,
        scaling: Mapping[str, Any],
    ) -> None:
        """Compute the table."""
        self.scaling = dict(scaling)  # read while the base class computes the table
        super().__init__(head_size, rotary_dim, max_position_embeddings, base, is_neox_style, dtype)

    def _compute_inv_freq(self, base: float) -> torch.Tensor:
        plain = super()._compute_inv_freq(base)
        factor, trained = float(self.scaling["factor"]), float(self.scaling["original_max_position_embeddings"])

        def pair(turns: float) -> float:
            """Return the pair, not whole, that turns so often in the trained context."""
            return self.rotary_dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base))

        low, high = pair(self.scaling.get("beta_fast") or 32.0), pair(self.scaling.get("beta_slow") or 1.0)
        if self.scaling.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.rotary_dim - 1)
        span = high - low or 0.001
        slow = ((torch.arange(self.rotary_dim // 2, dtype=torch.float32) - low) / span).clamp(0, 1)
        # 1 / (factor * (1 / plain)) and plain, in the order of the models' own code
        return plain / factor * slow + plain * (1 - slow)

    def _compute_cos_sin_cache(self) -> torch.Tensor:
        return super()._compute_cos_sin_cache() * attention_factor(self.scaling)


def attention_factor(scaling: Mapping[str, Any]) -> float:
    """Return what cosines and sines are multiplied by, no unit."""
    given = scaling.get("attention_factor")
    if given is not None:
        return float(given)
    factor, m, all_dim = float(scaling["factor"]), scaling.get("mscale"), scaling.get("mscale_all_dim")
    if m and all_dim:
        return magnitude(factor, float(m)) / magnitude(factor, float(all_dim))
    return magnitude(factor)


def magnitude(factor: float, m: float = 1.0) -> float:
    """Return 0.1 m log(factor) + 1, and 1 where nothing is stretched."""
    return 0.1 * m * math.log(factor) + 1.0 if factor > 1 else 1.0
