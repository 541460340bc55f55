"""Which experts a token goes to, against a plain rule written out token by token."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from opdock.errors import ConfigError
from opdock.nn.moe import Routing, route


def by_hand(logits: list[float], r: Routing, bias: list[float]) -> dict[int, float]:
    """Return expert to weight, with Python's numbers."""
    if r.scoring == "softmax":
        total = math.fsum(math.exp(v) for v in logits)
        scores = [math.exp(v) / total for v in logits]
    else:
        scores = [1 / (1 + math.exp(-v)) for v in logits]
    choice = [s + b for s, b in zip(scores, bias, strict=True)]
    size = len(logits) // r.num_groups
    groups = [sorted(choice[g * size : (g + 1) * size], reverse=True) for g in range(r.num_groups)]
    value = [g[0] if r.group_score == "max" else g[0] + g[1] for g in groups]
    allowed = sorted(range(r.num_groups), key=lambda g: -value[g])[: r.topk_groups]
    able = [e for e in range(len(logits)) if e // size in allowed]
    chosen = sorted(able, key=lambda e: -choice[e])[: r.top_k]
    weights = {e: scores[e] for e in chosen}
    by = math.fsum(weights.values()) if r.renormalize else 1.0
    return {e: w / by * r.scaling_factor for e, w in weights.items()}


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize("groups", [(1, 1, "max"), (4, 2, "max"), (4, 2, "top2"), (2, 1, "top2"), (4, 4, "max")])
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_choice_and_weights_are_those_of_the_rule(
    scoring: str, groups: tuple[int, int, str], *, renormalize: bool, biased: bool
) -> None:
    torch.manual_seed(3)
    routing = Routing(16, 5, scoring, renormalize, 1.7, groups[0], groups[1], groups[2])
    logits = torch.randn(50, 16, dtype=torch.float64) * 2
    bias = torch.randn(16, dtype=torch.float64) * 0.3 if biased else None
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        weights, ids = route(logits.to(dtype), routing, bias)
        assert (weights.dtype, ids.dtype) == (dtype, torch.int32)
        for t in range(50):
            want = by_hand(logits[t].tolist(), routing, [0.0] * 16 if bias is None else bias.tolist())
            assert set(ids[t].tolist()) == set(want)
            for e, w in zip(ids[t].tolist(), weights[t].tolist(), strict=True):
                assert w == pytest.approx(want[e], rel=tolerance)


def test_of_equal_scores_the_first_experts_are_taken() -> None:
    """So that a tie is broken alike in every batch."""
    weights, ids = route(torch.zeros(3, 64, dtype=torch.bfloat16), Routing(64, 8))
    assert ids.tolist() == [list(range(8))] * 3
    assert torch.allclose(weights, torch.full((3, 8), 0.125))


def test_scores_of_bfloat16_logits_are_float32() -> None:
    logits = torch.randn(4, 16).bfloat16()
    weights, _ = route(logits, Routing(16, 2, renormalize=False))
    assert torch.equal(weights, logits.float().softmax(-1).sort(-1, descending=True).values[:, :2])


def test_scores_that_all_vanish_give_no_nan() -> None:
    weights, _ = route(torch.full((1, 8), -1e4), Routing(8, 2, "sigmoid"))
    assert torch.equal(weights, torch.zeros(1, 2))


def test_no_tokens_have_no_experts() -> None:
    weights, ids = route(torch.empty(0, 8), Routing(8, 2, num_groups=2))
    assert weights.shape == ids.shape == (0, 2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"top_k": 0}, "0 of 8 experts"),
        ({"top_k": 9}, "9 of 8 experts"),
        ({"num_experts": 0}, "There are 0 experts"),
        ({"num_groups": 3}, "3 groups of equal size"),
        ({"num_groups": 0}, "0 groups"),
        ({"num_groups": 4, "topk_groups": 5}, "5 of 4 groups"),
        ({"num_groups": 8, "topk_groups": 1}, "fewer than 2"),
        ({"num_groups": 8, "topk_groups": 4, "group_score": "top2"}, "two best"),
        ({"scoring": "softmaxx"}, "Did you mean 'softmax'"),
        ({"group_score": "top3"}, "Did you mean 'top2'"),
    ],
)
def test_numbers_that_cannot_be_are_refused_with_the_layers_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        Routing(**{"num_experts": 8, "top_k": 2, "layer": "model.layers.3.mlp", **changes})
    assert "model.layers.3.mlp" in str(caught.value)
