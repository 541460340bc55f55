"""Captured steps of single tokens, and later steps that need more counters of ended splits than there were."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from opdock.nn.attention import AttentionMetadata, AttentionSpec
from opdock.nn.attention.dense import attend

pytest.importorskip("triton", reason="needs Triton")
attention_again = pytest.importorskip("opdock.nn.kernels.triton.attention_again", reason="needs Triton")
attention_launch = pytest.importorskip("opdock.nn.kernels.triton.attention_launch", reason="needs Triton")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and there is none"),
]
SPEC = AttentionSpec(num_heads=4, num_kv_heads=2, head_size=64, scale=0.2)
SPLIT = attention_launch.Tuning(16, 64, 2, 2, splits=2)
LENGTH, BLOCK = 200, 16


class Layer:
    """Caches of one request's positions, which all requests share, and the counters of a layer."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        blocks = -(-LENGTH // BLOCK)
        shape = (blocks, BLOCK, SPEC.num_kv_heads, SPEC.head_size)
        self.keys, self.values = (torch.randn(shape, device="cuda").bfloat16() for _ in range(2))
        self.table, self.one = list(range(blocks)), torch.ones((), device="cuda")
        self.counters = attention_again.Counters()

    def step(self, requests: int) -> tuple[torch.Tensor, AttentionMetadata]:
        """Return queries and metadata of requests of one token each."""
        metadata = AttentionMetadata.build(
            query_lens=[1] * requests, seq_lens=[LENGTH] * requests, block_tables=[self.table] * requests,
            block_size=BLOCK, device="cuda",
        )  # fmt: skip
        return torch.randn(requests, SPEC.num_heads, SPEC.head_size, device="cuda").bfloat16(), metadata

    def attend(self, step: tuple[torch.Tensor, AttentionMetadata], output: torch.Tensor) -> None:
        """Run the kernel."""
        attention_launch.paged_attention(
            step[0], self.keys, self.values, step[1], output, SPEC, k_scale=self.one, v_scale=self.one,
            counters=self.counters, single=SPLIT,
        )  # fmt: skip

    def error(self, step: tuple[torch.Tensor, AttentionMetadata], output: torch.Tensor) -> float:
        """Return the largest error of a result against float64."""
        keys, values = (t.flatten(0, 1)[:LENGTH].double() for t in (self.keys, self.values))
        want = torch.cat([attend(row[None].double(), keys, values, SPEC) for row in step[0][-64:]])
        return float((output[-64:].double() - want).abs().max())


def _captured(run: Any) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def test_a_graph_stays_right_when_later_steps_need_more_counters() -> None:
    layer = Layer()
    few, many = layer.step(8), layer.step(2100)  # times two key heads: more than 4,096
    out, more = (torch.empty_like(step[0]) for step in (few, many))
    layer.attend(few, out)
    graph = _captured(lambda: layer.attend(few, out))
    layer.attend(many, more)
    litter = [torch.full((4096,), 7, dtype=torch.int32, device="cuda") for _ in range(64)]
    for _ in range(3):
        out.fill_(float("nan"))
        graph.replay()
        assert layer.error(few, out) < 2.5e-2
        assert layer.error(many, more) < 2.5e-2
    assert all(bool((t == 7).all()) for t in litter)


def test_more_counters_while_a_graph_is_captured_are_the_graphs_own() -> None:
    layer = Layer()
    few, many = layer.step(8), layer.step(2100)
    out, more = (torch.empty_like(step[0]) for step in (few, many))
    layer.attend(few, out)
    graph = _captured(lambda: [layer.attend(many, more) for _ in range(2)])
    for _ in range(3):
        out.fill_(float("nan"))
        layer.attend(few, out)  # before the first replay too: what the graph would set to 0 is not used here
        more.fill_(float("nan"))
        graph.replay()
        assert layer.error(few, out) < 2.5e-2
        assert layer.error(many, more) < 2.5e-2
    other = torch.empty_like(more)
    layer.attend(many, other)
    assert torch.equal(other, more)
