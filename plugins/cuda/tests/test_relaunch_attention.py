"""Steps of single tokens that start again give the bits of those that Triton's launcher starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from opdock.nn.attention import AttentionMetadata, AttentionSpec

pytest.importorskip("triton", reason="needs Triton")
attention_again = pytest.importorskip("opdock.nn.kernels.triton.attention_again", reason="needs Triton")
attention_cache = pytest.importorskip("opdock.nn.kernels.triton.attention_cache", reason="needs Triton")
attention_launch = pytest.importorskip("opdock.nn.kernels.triton.attention_launch", reason="needs Triton")
relaunch = pytest.importorskip("opdock.nn.kernels.triton.relaunch", reason="needs Triton")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and there is none"),
]
BLOCK, BLOCKS = 16, 256
SPEC = AttentionSpec(num_heads=8, num_kv_heads=2, head_size=64, scale=0.125)


class Layer:
    """Two caches with numbers in every slot, and what belongs to them."""

    def __init__(self, spec: AttentionSpec, dtype: torch.dtype, kv_dtype: torch.dtype | None = None) -> None:
        shape = (2, BLOCKS, BLOCK, spec.num_kv_heads, spec.head_size)
        self.spec, self.caches = spec, torch.randn(shape, device="cuda").to(kv_dtype or dtype)
        self.k_scale, self.v_scale = torch.full((), 0.5, device="cuda"), torch.full((), 2.0, device="cuda")
        self.slopes = torch.rand(spec.num_heads, device="cuda") if spec.has_alibi else None
        self.sinks = torch.rand(spec.num_heads, device="cuda") if spec.has_sinks else None
        self.counters = attention_again.Counters()

    def step(self, rows: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        """Write the keys and values of rows (requests, heads, head_size) to the cache, and attend."""
        heads, kv_heads = self.spec.num_heads, self.spec.num_kv_heads
        query, key, value = rows.split((heads, kv_heads, kv_heads), 1)
        attention_cache.reshape_and_cache(key, value, *self.caches, metadata.slot_mapping, self.k_scale, self.v_scale)
        output = torch.full((len(rows), heads, self.spec.head_size), 7.0, dtype=rows.dtype, device="cuda")
        attention_launch.paged_attention(
            query, *self.caches, metadata, output, self.spec, k_scale=self.k_scale, v_scale=self.v_scale,
            counters=self.counters, alibi_slopes=self.slopes, sinks=self.sinks,
        )  # fmt: skip
        return output


def _metadata(lengths: list[int]) -> AttentionMetadata:
    tables = [[(request * 37 + at) % BLOCKS for at in range(-(-n // BLOCK))] for request, n in enumerate(lengths)]
    return AttentionMetadata.build(
        query_lens=[1] * len(lengths), seq_lens=lengths, block_tables=tables, block_size=BLOCK, device="cuda"
    )


def _rows(requests: int, spec: AttentionSpec, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(requests, spec.num_heads + 2 * spec.num_kv_heads, spec.head_size, device="cuda").to(dtype)


@pytest.fixture(autouse=True)
def _empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins with nothing kept."""
    torch.manual_seed(0)
    monkeypatch.setattr(attention_again, "_plans", {})
    monkeypatch.setattr(attention_cache, "_kept", {})


@pytest.mark.parametrize(
    ("changed", "dtype", "kv_dtype"),
    [
        ({}, torch.bfloat16, None),
        ({"num_heads": 9, "num_kv_heads": 3}, torch.float32, None),
        ({"sliding_window": 40}, torch.float16, None),
        ({"logits_soft_cap": 5.0, "has_alibi": True, "has_sinks": True}, torch.bfloat16, None),
        ({"batch_invariant": True}, torch.bfloat16, None),
        ({}, torch.bfloat16, torch.float8_e4m3fn),
    ],
    ids=str,
)
def test_each_step_has_the_bits_of_a_step_without_it(
    changed: dict[str, Any], dtype: torch.dtype, kv_dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two layers in turns, batches that grow and shrink, lengths over borders of splits."""
    layers = [Layer(replace(SPEC, **changed), dtype, kv_dtype) for _ in range(2)]
    steps = ([1], [17, 130], [18, 131], [19, 700, 64, 65, 1], [20, 132], [1000] * 3, [1001] * 3, [2])
    for lengths in steps * 2:
        for layer in layers:
            metadata, rows = _metadata(lengths), _rows(len(lengths), layer.spec, dtype)
            before = layer.caches.clone()
            got, made = layer.step(rows, metadata), layer.caches.clone()
            layer.caches.copy_(before)
            monkeypatch.setattr(relaunch, "ENABLED", False)
            want = layer.step(rows, metadata)
            monkeypatch.setattr(relaunch, "ENABLED", True)
            assert torch.equal(got, want), lengths
            assert torch.equal(made.view(torch.uint8), layer.caches.view(torch.uint8)), lengths
    assert len(attention_again._plans) == 1
    assert len(attention_cache._kept) == 4  # numbers of requests


def test_rows_off_their_border_go_the_long_way() -> None:
    layer, metadata = Layer(SPEC, torch.bfloat16), _metadata([33, 70])
    rows = _rows(2, SPEC, torch.bfloat16)
    want = layer.step(rows, metadata)
    kept = len(attention_cache._kept)
    memory = torch.zeros(rows.numel() + 1, dtype=rows.dtype, device="cuda")[1:].view(rows.shape)
    torch.testing.assert_close(layer.step(memory.copy_(rows), metadata), want)
    assert len(attention_cache._kept) == kept


def test_a_captured_step_follows_its_tensors() -> None:
    """A launch that was kept before is captured, and one that was not, and both replay over new numbers."""
    for warm in (True, False):
        layer, metadata = Layer(SPEC, torch.bfloat16), _metadata([300, 40, 5])
        metadata = replace(metadata, max_seq_len=640, query_lens=None, context_lens=None)
        rows = _rows(3, SPEC, torch.bfloat16)
        layer.step(rows, metadata)
        if not warm:
            attention_cache._kept.clear()
            attention_again._plans[SPEC].clear()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = layer.step(rows, metadata)
        for _ in range(2):
            rows.normal_()
            metadata.seq_lens.copy_(torch.tensor([301, 39, 6]))
            want = layer.step(rows, metadata)
            output.zero_()
            graph.replay()
            assert torch.equal(output, want)
