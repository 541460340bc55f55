"""Embedding, head and logits."""

from __future__ import annotations

import pytest
import torch

from opdock.errors import CheckpointError
from opdock.nn.layers import LogitsProcessor, ParallelLMHead, VocabParallelEmbedding

pytestmark = pytest.mark.usefixtures("config")


def test_rows_are_looked_up() -> None:
    """One row for each id."""
    layer = VocabParallelEmbedding(10, 4)
    weight = torch.randn(10, 4)
    layer.weight_loader(layer.weight, weight)
    torch.testing.assert_close(layer(torch.tensor([3, 3, 9])), weight[[3, 3, 9]])
    with pytest.raises(CheckpointError):
        layer.weight_loader(layer.weight, torch.zeros(1, 4))


def test_logits_are_rows_times_the_heads_weight() -> None:
    """With the head's bias, or another in its place."""
    head = ParallelLMHead(10, 4, bias=True)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    rows, other = torch.randn(2, 4), torch.randn(10)
    process = LogitsProcessor(10)
    torch.testing.assert_close(process(head, rows), rows @ head.weight.T + head.bias)
    torch.testing.assert_close(process(head, rows, other), rows @ head.weight.T + other)


def test_a_tied_head_shares_the_embeddings_memory() -> None:
    """And has no second parameter of its own."""
    embedding, head = VocabParallelEmbedding(10, 4), ParallelLMHead(10, 4)
    assert head.tie_weights(embedding) is head
    assert head.weight is embedding.weight


def test_logits_are_capped_scaled_and_cut() -> None:
    """Cap first, then scale; a padded head's extra logits are dropped."""
    head = ParallelLMHead(10, 4)
    torch.nn.init.normal_(head.weight)
    rows = torch.randn(2, 4)
    expected = torch.tanh(rows @ head.weight.T / 2.0) * 2.0 * 0.5
    torch.testing.assert_close(LogitsProcessor(8, scale=0.5, soft_cap=2.0)(head, rows), expected[:, :8])
