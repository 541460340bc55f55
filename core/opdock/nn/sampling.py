"""From logits to the next token."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from opdock.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen.

    Args:
        temperature: divides the logits, no unit; 0 always takes the likeliest token.
        top_k: only the k likeliest tokens; 0 means all.
        top_p: only the likeliest tokens whose probabilities together reach p, in (0, 1].
        seed: makes the choices repeatable; None draws a new one.

    Raises: ConfigError for an impossible value.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        if not 0.0 <= self.temperature < float("inf"):
            raise ConfigError(
                f"temperature={self.temperature} is not possible.",
                remedy="use 0 (greedy) or a number above it.",
            )
        if self.top_k < 0:
            raise ConfigError(f"top_k={self.top_k} is not possible.", remedy="use 0 (all) or a number of tokens.")
        if not 0.0 < self.top_p <= 1.0:
            raise ConfigError(f"top_p={self.top_p} is not possible.", remedy="use a number above 0 and up to 1.")
        if self.seed is not None and not -(2**63) <= self.seed < 2**64:
            raise ConfigError(f"seed={self.seed} is not possible.", remedy="use a whole number of 64 bits.")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0.0 or self.top_k == 1


def make_generator(params: SamplingParams, device: torch.device) -> torch.Generator | None:
    """Return the source of random numbers for one text, or None where none are drawn."""
    if params.greedy:
        return None
    generator = torch.Generator(device=device)
    if params.seed is None:
        generator.seed()
    else:
        generator.manual_seed(params.seed)
    return generator


def remember(generators: Iterable[torch.Generator | None]) -> Callable[[], None]:
    """Return a function that puts random generators back to where they are now, where their device can do that."""
    states = []
    for generator in generators:
        if generator is not None:
            with contextlib.suppress(RuntimeError):  # NotImplementedError too
                states.append((generator, generator.get_state()))

    def put_back() -> None:
        for generator, state in states:
            generator.set_state(state)

    return put_back


def sample(logits: torch.Tensor, params: SamplingParams, generator: torch.Generator | None = None) -> torch.Tensor:
    """Return the next token of each row, (rows,) int64.

    Args:
        logits: (rows, vocab).
        params: how to choose.
        generator: source of random numbers, on the device of the logits.
    """
    if params.greedy:
        return logits.argmax(dim=-1)
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32)) / params.temperature
    keep = min(params.top_k or scores.shape[-1], scores.shape[-1])
    if keep == scores.shape[-1] and params.top_p == 1.0:
        return torch.multinomial(scores.softmax(dim=-1), 1, generator=generator).squeeze(-1)
    scores, ids = scores.topk(keep, dim=-1)  # sorted, so that a prefix is the likeliest set
    probabilities = scores.softmax(dim=-1)
    if params.top_p < 1.0:
        # a token stays if those before it have not reached p yet; the first always does
        before = probabilities.cumsum(dim=-1) - probabilities
        probabilities = probabilities.masked_fill(before >= params.top_p, 0.0)
    choice = torch.multinomial(probabilities, 1, generator=generator)
    return ids.gather(-1, choice).squeeze(-1)
