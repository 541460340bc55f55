"""Rotary embeddings against complex multiplication and against transformers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from opdock.errors import UnsupportedError
from opdock.nn.layers import (
    FrequencyFactorRotaryEmbedding,
    LinearScalingRotaryEmbedding,
    Llama3RotaryEmbedding,
    RotaryEmbedding,
    get_rope,
)

pytestmark = pytest.mark.usefixtures("config")

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def _turned(rows: torch.Tensor, angles: torch.Tensor, rotary_dim: int, neox: bool) -> torch.Tensor:
    """Rotate each pair as a complex number; rows (tokens, heads, head_size)."""
    part, rest = rows[..., :rotary_dim], rows[..., rotary_dim:]
    if neox:
        a, b = part.chunk(2, -1)
    else:
        a, b = part[..., ::2], part[..., 1::2]
    turned = torch.complex(a, b) * torch.polar(torch.ones_like(angles), angles)[:, None]
    joined = (
        torch.cat((turned.real, turned.imag), -1) if neox else torch.stack((turned.real, turned.imag), -1).flatten(-2)
    )
    return torch.cat((joined, rest), -1)


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("rotary_dim", [16, 8])
def test_pairs_turn_by_position_times_frequency(neox: bool, rotary_dim: int) -> None:
    """Both pairings, whole and partial rotation; keys may have fewer heads."""
    rope = RotaryEmbedding(16, rotary_dim, 32, 100.0, neox, torch.float64)
    positions = torch.tensor([0, 3, 31])
    q, k = torch.randn(3, 4, 16, dtype=torch.float64), torch.randn(3, 2, 16, dtype=torch.float64)
    frequencies = 100.0 ** (-torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)
    angles = positions.double()[:, None] * frequencies
    expected = [_turned(rows, angles, rotary_dim, neox).flatten(-2) for rows in (q, k)]
    found = rope(positions, q.flatten(-2), k.flatten(-2))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_table_is_computed_in_float32_and_cast(dtype: torch.dtype) -> None:
    """Its values belong to the model and do not depend on the dtype of a run."""
    exact = RotaryEmbedding(8, 8, 512, 10000.0, True, torch.float32).cos_sin_cache
    table = RotaryEmbedding(8, 8, 512, 10000.0, True, dtype).cos_sin_cache
    assert table.dtype is dtype and table.shape == (512, 8)
    assert torch.equal(table, exact.to(dtype))


def test_no_checkpoint_holds_the_table() -> None:
    """It is computed."""
    assert not RotaryEmbedding(8, 8, 16, 10000.0, True).state_dict()


@pytest.mark.parametrize("scaling", [{"rope_type": "default"}, {"rope_type": "linear", "factor": 4.0}, LLAMA3])
def test_tables_are_those_of_transformers(scaling: dict[str, Any]) -> None:
    """Plain, linear and Llama 3 scaling."""
    llama = pytest.importorskip("transformers.models.llama", reason="needs transformers to compare with")
    settings = llama.LlamaConfig(
        hidden_size=64,
        num_attention_heads=2,
        max_position_embeddings=256,
        rope_parameters={"rope_theta": 500.0, **scaling},
    )
    theirs = llama.modeling_llama.LlamaRotaryEmbedding(settings)
    cos, sin = theirs(torch.zeros(1), torch.arange(256)[None])
    ours = get_rope(32, 32, 256, 500.0, rope_scaling=scaling).cos_sin_cache
    torch.testing.assert_close(ours, torch.cat((cos[0, :, :16], sin[0, :, :16]), -1), rtol=0, atol=2e-7)


def test_get_rope_takes_the_older_key_and_none() -> None:
    """``type`` is what older files write."""
    assert type(get_rope(8, 8, 16, 100.0)) is RotaryEmbedding
    older = get_rope(8, 8, 16, 100.0, rope_scaling={"type": "linear", "factor": 2.0})
    assert type(older) is LinearScalingRotaryEmbedding
    assert type(get_rope(8, 8, 16, 100.0, rope_scaling=LLAMA3)) is Llama3RotaryEmbedding


def test_linear_scaling_divides_every_angle() -> None:
    """Position 8 with factor 4 is position 2 without."""
    plain = get_rope(8, 8, 16, 100.0).cos_sin_cache
    scaled = get_rope(8, 8, 16, 100.0, rope_scaling={"rope_type": "linear", "factor": 4.0}).cos_sin_cache
    torch.testing.assert_close(scaled[8], plain[2])


def test_frequency_factors_divide_each_angle_by_its_own() -> None:
    """As GGUF files store a Llama 3 scaling."""
    rope = get_rope(8, 8, 4, 100.0, rope_scaling={"rope_type": "factors", "factors": [1.0, 2.0, 4.0, 8.0]})
    assert type(rope) is FrequencyFactorRotaryEmbedding
    angle = 3 * 100.0 ** (-6 / 8) / 8.0
    assert float(rope.cos_sin_cache[3, 3]) == pytest.approx(math.cos(angle))


def test_an_unknown_scaling_is_refused_with_the_known_ones() -> None:
    """No silent fall back to the plain table."""
    with pytest.raises(UnsupportedError, match="Did you mean 'llama3'"):
        get_rope(8, 8, 16, 100.0, rope_scaling={"rope_type": "llama4"})
