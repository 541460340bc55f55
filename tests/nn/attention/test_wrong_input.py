"""What a caller can give wrongly is refused in words, where it can be known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import opdock
from opdock.errors import ConfigError, UnknownNameError
from opdock.nn.attention import (
    Attention,
    AttentionMetadata,
    BlockAllocator,
    PagedKVCache,
    copy_blocks,
    set_forward_context,
    swap_blocks,
)


@pytest.fixture(autouse=True)
def _config() -> Iterator[None]:
    with opdock.set_current_config():
        yield


def _layer() -> Attention:
    return Attention(4, 16, 0.25, 2, prefix="layers.0.attn")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"block_tables": [[-1]]}, r"has the block -1[\s\S]*go nowhere"),
        ({"block_size": 0}, "blocks of 0 positions make no step"),
        ({"seq_lens": [1, 1]}, "2 lengths and 1 tables"),
    ],
)
def test_a_step_that_cannot_be_is_refused_on_the_host(changes: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"query_lens": [1], "seq_lens": [1], "block_tables": [[0]], "block_size": 16, **changes}
    with pytest.raises(ConfigError, match=words):
        AttentionMetadata.build(**given)


@pytest.mark.parametrize(
    ("query_lens", "seq_lens", "tables", "wrong"),
    [
        ([20], [20], [[3, 3]], "the slot 48, of block 3"),
        ([1, 2], [18, 18], [[0, 7], [1, 7]], "the slot 113, of block 7"),
        ([1, 1], [17, 18], [[4, 5], [4, 5]], ""),
    ],
)
def test_two_tokens_of_one_slot_are_refused_where_every_slot_is_looked_at(
    query_lens: list[int], seq_lens: list[int], tables: list[list[int]], wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One would be lost; a prefix may be shared."""
    monkeypatch.setenv("OPDOCK_STRICT", "1")
    layer = _layer()
    cache = PagedKVCache({"layers.0.attn": layer}, num_blocks=8)
    cache.bind()
    step = AttentionMetadata.build(query_lens=query_lens, seq_lens=seq_lens, block_tables=tables, block_size=16)
    rows = sum(query_lens)
    given = (torch.randn(rows, 64), torch.randn(rows, 32), torch.randn(rows, 32))
    with set_forward_context(step, cache):
        if not wrong:
            assert layer(*given).shape == (rows, 64)
            return
        with pytest.raises(ConfigError, match=rf"{wrong}[\s\S]*layers.0.attn[\s\S]*would be lost"):
            layer(*given)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_heads": 0, "num_kv_heads": None}, "0 query heads cannot share"),
        ({"head_size": 0}, "Heads of 0 numbers"),
        ({"scale": float("nan")}, "with the scale nan"),
        ({"sliding_window": 2.5}, "sliding_window=2.5"),
        ({"logits_soft_cap": float("nan")}, "logits_soft_cap=nan"),
        ({"sinks": [1.0] * 4}, "sinks of no shape does not fit 4 heads"),
    ],
)
def test_a_layer_that_computes_nothing_is_refused_when_it_is_built(changes: dict[str, Any], words: str) -> None:
    given = {"num_heads": 4, "head_size": 16, "scale": 0.25, "num_kv_heads": 2, "prefix": "layers.0.attn", **changes}
    with pytest.raises(ConfigError, match=rf"{words}[\s\S]*layer layers.0.attn[\s\S]*Remedy: "):
        Attention(**given)


def test_a_backend_that_is_no_name_is_an_unknown_one() -> None:
    with pytest.raises(UnknownNameError, match=r"backend: 5\.[\s\S]*layers.0.attn"):
        Attention(4, 16, 0.25, prefix="layers.0.attn", attn_backend=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("mapping", [[[0, 1]], torch.tensor([[0.0, 1.0]]), torch.tensor([0, 1])])
def test_a_mapping_of_blocks_that_is_none_is_refused_and_any_integers_are_taken(mapping: Any) -> None:
    cache = torch.arange(8.0).view(4, 1, 1, 2)
    for move in (lambda m: copy_blocks([(cache, cache.clone())], m), lambda m: swap_blocks(cache, cache.clone(), m)):
        with pytest.raises(ConfigError, match="mapping of blocks cannot be carried out"):
            move(mapping)
    copy_blocks([(cache, cache.clone())], torch.tensor([[0, 3]], dtype=torch.int32))
    assert cache[3].flatten().tolist() == [0.0, 1.0]


def test_blocks_are_copied_in_all_layers_or_in_none() -> None:
    """The second layer has fewer."""
    large, small = torch.zeros(4, 1, 1, 2), torch.zeros(2, 1, 1, 2)
    large[0] = 1
    with pytest.raises(ConfigError, match="blocks are 0 to 1"):
        copy_blocks([(large, large.clone()), (small, small.clone())], torch.tensor([[0, 3]]))
    assert not large[3].any()


def test_a_number_of_blocks_below_0_is_refused() -> None:
    with pytest.raises(ConfigError, match="-1 blocks cannot be allocated"):
        BlockAllocator(4).allocate(-1)


@pytest.mark.parametrize("backend", ["NATIVE", "SDPA"])
@pytest.mark.parametrize("length", [33, 1])
def test_a_step_made_by_hand_whose_lengths_do_not_fit_is_refused(backend: str, length: int) -> None:
    """More positions than blocks, or fewer than new tokens: other keys would be read, or none."""
    layer = Attention(4, 16, 0.25, 2, prefix="layers.0.attn", attn_backend=backend)
    cache = PagedKVCache({"layers.0.attn": layer}, num_blocks=4)
    cache.bind()
    step = AttentionMetadata.build(query_lens=[2], seq_lens=[20], block_tables=[[0, 1]], block_size=16)
    wrong = replace(step, seq_lens=torch.tensor([length], dtype=torch.int32))
    words = rf"2 new tokens and {length} positions[\s\S]*layers.0.attn"
    with set_forward_context(wrong, cache), pytest.raises(ConfigError, match=words):
        layer(torch.randn(2, 64), torch.randn(2, 32), torch.randn(2, 32))


def test_slots_counted_in_blocks_of_another_size_name_the_layer() -> None:
    layer = _layer()
    cache = PagedKVCache({"layers.0.attn": layer}, num_blocks=4)
    cache.bind()
    step = AttentionMetadata.build(query_lens=[1], seq_lens=[20], block_tables=[[0, 1, 2]], block_size=8)
    with set_forward_context(step, cache), pytest.raises(ConfigError, match=r"blocks of 8.*blocks of 16") as found:
        layer(torch.randn(1, 64), torch.randn(1, 32), torch.randn(1, 32))
    assert "layers.0.attn" in str(found.value)


@pytest.mark.parametrize("rows", [(1, 2, 1), (1, 1, 2), (2, 1, 1)])
@pytest.mark.parametrize("traced", [False, True])
def test_keys_and_values_of_other_tokens_than_the_queries_are_refused(
    rows: tuple[int, int, int], *, traced: bool
) -> None:
    """Kernels would read past the end."""
    layer = _layer()
    layer._direct = not traced  # as on a platform whose attention is one op in any case
    cache = PagedKVCache({"layers.0.attn": layer}, num_blocks=4)
    cache.bind()
    step = AttentionMetadata.build(query_lens=[rows[0]], seq_lens=[2], block_tables=[[0]], block_size=16)
    q, k, v = (torch.randn(n, width) for n, width in zip(rows, (64, 32, 32), strict=True))
    with set_forward_context(step, cache), pytest.raises(ConfigError, match="not one of each for every token"):
        layer(q, k, v)


def test_a_cache_of_integers_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cannot hold torch.int8[\s\S]*float8_e4m3fn"):
        PagedKVCache({"layers.0.attn": _layer()}, num_blocks=4, dtype=torch.int8)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_scales_are_not_calculated_from_numbers_that_are_none(number: float) -> None:
    layer = _layer()
    with pytest.raises(ConfigError, match=r"give no scale[\s\S]*layers.0.attn"):
        layer.calculate_kv_scales(torch.tensor([1.0, number]), torch.ones(2), torch.float8_e4m3fn)
    assert float(layer.k_scale) == 1.0


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([[0, 9]], "the blocks are 0 to 3"),
        ([[-1, 1]], "the blocks are 0 to 3"),
        ([[0, 1], [2, 1]], "written twice"),
        ([[0, 1], [1, 2]], "read and written"),
        ([0, 1], "shape is"),
    ],
)
def test_mappings_of_blocks_that_cannot_be_carried_out_change_nothing(pairs: Any, words: str) -> None:
    keys, values = torch.randn(4, 16, 2, 8), torch.randn(4, 16, 2, 8)
    before = keys.clone()
    with pytest.raises(ConfigError, match=words):
        copy_blocks([(keys, values)], torch.tensor(pairs))
    assert torch.equal(keys, before)
    if "read and written" not in words:
        with pytest.raises(ConfigError, match=words):
            swap_blocks(values, keys, torch.tensor(pairs))
    assert torch.equal(keys, before)
