"""How the next token is chosen."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from opdock.errors import ConfigError
from opdock.nn.sampling import SamplingParams, make_generator, sample

LOGITS = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))


def _draws(count: int = 4000, **params: Any) -> torch.Tensor:
    chosen = SamplingParams(**{"temperature": 1.0, "seed": 0, **params})
    generator = make_generator(chosen, torch.device("cpu"))
    drawn = sample(LOGITS.expand(count, -1), chosen, generator)
    return torch.bincount(drawn, minlength=4) / count


def test_greedy_takes_the_likeliest() -> None:
    """Temperature 0, and top_k 1 at any temperature."""
    for params in (SamplingParams(), SamplingParams(temperature=1.0, top_k=1)):
        assert params.greedy and make_generator(params, torch.device("cpu")) is None
        assert sample(LOGITS, params).tolist() == [0]


def test_frequencies_are_the_probabilities() -> None:
    """At temperature 1."""
    torch.testing.assert_close(_draws(), LOGITS.exp()[0], atol=0.03, rtol=0)


def test_temperature_sharpens_and_flattens() -> None:
    """It divides the logits."""
    for temperature in (0.5, 2.0):
        expected = (LOGITS[0] / temperature).softmax(-1)
        torch.testing.assert_close(_draws(temperature=temperature), expected, atol=0.03, rtol=0)


def test_top_k_keeps_the_k_likeliest() -> None:
    """More than there are means all."""
    found = _draws(top_k=2)
    torch.testing.assert_close(found, torch.tensor([0.625, 0.375, 0.0, 0.0]), atol=0.03, rtol=0)
    assert (_draws(top_k=99) > 0).all()


@pytest.mark.parametrize(("p", "kept"), [(0.01, 1), (0.5, 1), (0.51, 2), (0.79, 2), (0.9, 3), (1.0, 4)])
def test_top_p_keeps_the_smallest_set_that_reaches_p(p: float, kept: int) -> None:
    """The likeliest token always stays."""
    assert int((_draws(top_p=p) > 0).sum()) == kept


def test_a_seed_repeats_and_another_does_not() -> None:
    """The choices depend on nothing else."""

    def run(seed: int) -> list[int]:
        params = SamplingParams(temperature=1.0, top_p=0.99, seed=seed)
        generator = make_generator(params, torch.device("cpu"))
        return [int(sample(LOGITS, params, generator)) for _ in range(50)]

    torch.manual_seed(1)
    first = run(7)
    torch.manual_seed(2)
    assert run(7) == first
    assert run(8) != first


def test_half_precision_logits_are_sampled_in_float32() -> None:
    """A large vocabulary's probabilities would vanish in bfloat16."""
    logits = torch.zeros(1, 50_000, dtype=torch.bfloat16)
    params = SamplingParams(temperature=1.0, top_p=0.5, seed=3)
    assert int(sample(logits, params, make_generator(params, logits.device))) < 50_000


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_p": float("nan")},
        {"seed": 2**64},
    ],
)
def test_impossible_values_are_refused(bad: dict[str, Any]) -> None:
    """When they are given, not at the first token."""
    with pytest.raises(ConfigError, match=f"{next(iter(bad))}=[\\s\\S]*Remedy:"):
        SamplingParams(**bad)
