"""Attention against the formula, head by head."""

from __future__ import annotations

import pytest
import torch

from opdock.errors import ConfigError, UnsupportedError
from opdock.nn.attention import Attention, KVCache

pytestmark = pytest.mark.usefixtures("config")
HEADS, KV_HEADS, SIZE = 6, 2, 8


def _formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, past: int, kv_heads: int) -> torch.Tensor:
    """Attend q (new, heads * size) to k, v (past + new, kv_heads * size), scores masked by hand."""
    new, total = q.shape[0], k.shape[0]
    group = HEADS // kv_heads
    outs = []
    for head in range(HEADS):
        rows = q.view(new, HEADS, SIZE)[:, head]
        keys, values = (t.view(total, kv_heads, SIZE)[:, head // group] for t in (k, v))
        scores = rows @ keys.T * SIZE**-0.5
        later = torch.arange(total)[None] > torch.arange(past, total)[:, None]
        outs.append(scores.masked_fill(later, float("-inf")).softmax(-1) @ values)
    return torch.stack(outs, 1).reshape(new, -1)


def _rows(count: int, heads: int) -> torch.Tensor:
    return torch.randn(count, heads * SIZE, dtype=torch.float64)


@pytest.mark.parametrize("kv_heads", [KV_HEADS, HEADS, 1])
def test_prompt_decode_and_later_parts_equal_the_formula(kv_heads: int) -> None:
    """In steps of 5, 1, 1, 4 and 1 positions through one cache."""
    layer = Attention(HEADS, SIZE, SIZE**-0.5, kv_heads)
    cache = KVCache(num_layers=1, num_kv_heads=kv_heads, max_len=12, head_size=SIZE, dtype=torch.float64)
    q, k, v = _rows(12, HEADS), _rows(12, kv_heads), _rows(12, kv_heads)
    for start, end in ((0, 5), (5, 6), (6, 7), (7, 11), (11, 12)):
        out = layer(q[start:end], k[start:end], v[start:end], cache.layers[0])
        cache.advance(end - start)
        expected = _formula(q[start:end], k[:end], v[:end], start, kv_heads)
        torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)


def test_without_a_cache_the_tokens_are_one_sequence() -> None:
    """Causal from the first."""
    layer = Attention(HEADS, SIZE, SIZE**-0.5, KV_HEADS)
    q, k, v = _rows(7, HEADS), _rows(7, KV_HEADS), _rows(7, KV_HEADS)
    torch.testing.assert_close(layer(q, k, v), _formula(q, k, v, 0, KV_HEADS), rtol=1e-10, atol=1e-10)


def test_inputs_may_be_slices_of_one_projection() -> None:
    """As split() gives them, without copies."""
    layer = Attention(HEADS, SIZE, SIZE**-0.5, KV_HEADS)
    joined = _rows(5, HEADS + 2 * KV_HEADS)
    q, k, v = joined.split((HEADS * SIZE, KV_HEADS * SIZE, KV_HEADS * SIZE), dim=-1)
    expected = _formula(q.contiguous(), k.contiguous(), v.contiguous(), 0, KV_HEADS)
    torch.testing.assert_close(layer(q, k, v), expected, rtol=1e-10, atol=1e-10)


def test_sequences_of_a_batch_do_not_see_each_other() -> None:
    """Tokens come sequence by sequence."""
    layer = Attention(HEADS, SIZE, SIZE**-0.5, KV_HEADS)
    cache = KVCache(num_layers=1, num_kv_heads=KV_HEADS, max_len=4, head_size=SIZE, batch=2, dtype=torch.float64)
    q, k, v = _rows(8, HEADS), _rows(8, KV_HEADS), _rows(8, KV_HEADS)
    out = layer(q, k, v, cache.layers[0])
    for i in (0, 4):
        expected = _formula(q[i : i + 4], k[i : i + 4], v[i : i + 4], 0, KV_HEADS)
        torch.testing.assert_close(out[i : i + 4], expected, rtol=1e-10, atol=1e-10)


def test_heads_that_do_not_divide_are_refused() -> None:
    """Every group of query heads has one key head."""
    with pytest.raises(ConfigError, match="6 query heads cannot share 4"):
        Attention(HEADS, SIZE, 1.0, 4)


def test_appending_moves_and_copies_nothing() -> None:
    """The views start at the same address at every step."""
    cache = KVCache(num_layers=2, num_kv_heads=1, max_len=8, head_size=SIZE)
    addresses = set()
    for _ in range(3):
        row = torch.randn(1, 1, 1, SIZE)
        keys, values = cache.layers[1].append(row, 2 * row)
        addresses.add((keys.data_ptr(), values.data_ptr()))
        cache.advance(1)
        assert keys.shape == values.shape == (1, 1, cache.length, SIZE)
        torch.testing.assert_close(values[:, :, -1:], 2 * row)
    assert len(addresses) == 1


def test_a_full_cache_says_so() -> None:
    """With the size that would do."""
    cache = KVCache(num_layers=1, num_kv_heads=1, max_len=8, head_size=SIZE)
    cache.require_room(8)
    cache.advance(6)
    with pytest.raises(UnsupportedError, match="max_len=9"):
        cache.require_room(3)
