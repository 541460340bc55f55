"""Blocks: who has them, and how they are copied."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from opdock.errors import ConfigError, OrderError, UnsupportedError
from opdock.nn.attention import (
    Attention,
    AttentionMetadata,
    BlockAllocator,
    PagedKVCache,
    attention_layers,
    copy_blocks,
    set_forward_context,
    swap_blocks,
)
from opdock.nn.attention.paged_cache import CacheMemoryError

pytestmark = pytest.mark.usefixtures("config")


def test_blocks_are_given_once_and_taken_back() -> None:
    allocator = BlockAllocator(4)
    first, second = allocator.allocate(3), allocator.allocate(1)
    assert sorted(first + second) == [0, 1, 2, 3]
    with pytest.raises(UnsupportedError, match="0 free blocks of 4, and 1 are needed"):
        allocator.allocate(1)
    allocator.free(first)
    assert allocator.num_free == 3
    assert set(allocator.allocate(3)) == set(first)


def test_too_many_blocks_at_once_take_none() -> None:
    allocator = BlockAllocator(2)
    with pytest.raises(UnsupportedError):
        allocator.allocate(3)
    assert allocator.num_free == 2


@pytest.mark.parametrize("blocks", [[5], [0, 0]])
def test_blocks_that_are_not_taken_are_not_freed(blocks: list[int]) -> None:
    allocator = BlockAllocator(2)
    allocator.allocate(1)
    with pytest.raises(ConfigError, match="cannot be freed"):
        allocator.free(blocks)
    assert allocator.num_free == 1


def test_a_requests_blocks_grow_with_its_positions() -> None:
    allocator, blocks = BlockAllocator(9), list[int]()
    for positions, count in ((0, 0), (1, 1), (16, 1), (17, 2), (5, 2)):
        allocator.extend(blocks, positions, 16)
        assert len(blocks) == count


class Model(nn.Module):
    """Two layers."""

    def __init__(self, *prefixes: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attention(2, 8, 1.0, prefix=p) for p in prefixes)


def test_layers_are_found_by_prefix_or_by_their_path() -> None:
    assert list(attention_layers(Model("a", ""))) == ["a", "layers.1"]
    with pytest.raises(ConfigError, match="Duplicate layer name: a"):
        attention_layers(Model("a", "a"))


def test_a_cache_binds_and_unbinds_a_model() -> None:
    model = Model("a", "b")
    cache = PagedKVCache.for_model(model, num_blocks=3, block_size=4, dtype=torch.float32)
    layer = model.layers[0]
    assert layer.key_cache is cache.tensors["a"][0]
    assert layer.key_cache.shape == (3, 4, 2, 8)
    assert layer.served_by == "SDPA"
    cache.unbind()
    assert layer.key_cache is None
    assert layer.served_by == "contiguous"
    with pytest.raises(ConfigError, match="no paged cache"):
        _ = layer.impl


def _two() -> dict[str, Attention]:
    return {name: Attention(4, 16, 0.25, 2, prefix=name) for name in ("first", "second")}


def test_a_cache_without_memory_says_how_much_it_takes() -> None:
    """As a batch of long contexts may; nothing is bound then."""
    layers = _two()
    with pytest.raises(CacheMemoryError, match=r"They take 4,194,304.0 GiB, 4.0 KiB for each[\s\S]*smaller max_len"):
        PagedKVCache(layers, num_blocks=2**40, dtype=torch.float16)
    assert layers["first"].served_by == "contiguous"


def test_a_cache_that_one_layer_cannot_use_is_bound_to_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a backend makes for a layer may fail: the model is then as before."""
    layers = _two()
    cache = PagedKVCache(layers, num_blocks=2)
    monkeypatch.setattr(layers["second"], "bind_cache", lambda *_: (_ for _ in ()).throw(MemoryError))
    with pytest.raises(MemoryError):
        cache.bind()
    assert [layer.served_by for layer in layers.values()] == ["contiguous"] * 2


def test_a_step_of_a_cache_that_is_not_bound_is_refused() -> None:
    """The layer would take all tokens for one sequence."""
    layers = _two()
    cache = PagedKVCache(layers, num_blocks=2)
    step = AttentionMetadata.build(query_lens=[1, 1], seq_lens=[1, 1], block_tables=[[0], [1]], block_size=16)
    cache.bind()
    layers["second"].unbind_cache()
    for given in (cache, layers):
        with (
            pytest.raises(OrderError, match=r"layer second[\s\S]*one sequence[\s\S]*Remedy: call bind"),
            set_forward_context(step, given),
        ):
            pass


def test_a_step_of_another_cache_than_the_one_that_is_bound_is_refused() -> None:
    """Its blocks are others; and the first cache, let go late, leaves the second one bound."""
    layers = _two()
    first, second = (PagedKVCache(layers, num_blocks=2) for _ in range(2))
    step = AttentionMetadata.build(query_lens=[1], seq_lens=[1], block_tables=[[0]], block_size=16)
    first.bind()
    second.bind()
    with pytest.raises(OrderError, match=r"layer first[\s\S]*Another cache"), set_forward_context(step, first):
        pass
    first.unbind()
    with set_forward_context(step, second):
        layers["first"](torch.randn(1, 64), torch.randn(1, 32), torch.randn(1, 32))


def test_a_cache_of_another_shape_is_refused_with_the_layers_name() -> None:
    layer = Attention(2, 8, 1.0, prefix="model.attn")
    with pytest.raises(ConfigError, match=r"model\.attn"):
        layer.bind_cache(torch.zeros(3, 4, 2, 16), torch.zeros(3, 4, 2, 16), torch.float32)
    with pytest.raises(ConfigError, match="0 blocks"):
        PagedKVCache({"a": layer}, num_blocks=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn])
def test_blocks_are_copied_and_swapped_whole(dtype: torch.dtype) -> None:
    key, value = (torch.randn(5, 4, 2, 8).to(dtype) for _ in range(2))
    before = key.float().clone(), value.float().clone()
    copy_blocks([(key, value)], torch.tensor([[0, 3], [1, 4]]))
    for tensor, old in zip((key, value), before, strict=True):
        assert torch.equal(tensor.float()[[0, 1, 2, 3, 4]], old[[0, 1, 2, 0, 1]])
    host = torch.zeros(2, 4, 2, 8).to(dtype)
    swap_blocks(key, host, torch.tensor([[2, 1], [4, 0]]))
    assert torch.equal(host.float(), before[0][[1, 2]])


def test_blocks_of_caches_that_differ_are_not_swapped() -> None:
    with pytest.raises(ConfigError, match="cannot be swapped"):
        swap_blocks(torch.zeros(2, 4, 2, 8), torch.zeros(2, 4, 2, 16), torch.tensor([[0, 1]]))


def test_scales_are_calculated_once_and_keep_their_bits() -> None:
    layer = Attention(2, 8, 1.0)
    key, value = torch.randn(50, 16), torch.randn(50, 16) * 3
    layer.calculate_kv_scales(key, value, torch.float8_e4m3fn)
    assert layer.k_scale == key.abs().max() / 448
    assert layer.v_scale == value.abs().max() / 448
    kept = layer.k_scale.clone()
    layer.to(torch.bfloat16)
    assert layer.k_scale.dtype == torch.float32
    assert torch.equal(layer.k_scale, kept)
    layer.calculate_kv_scales(torch.zeros(1), torch.zeros(1), torch.float8_e4m3fn)
    assert layer.k_scale == 1.0
