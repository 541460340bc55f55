"""One request of a batch: its tokens, its blocks, and how far it is."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opdock.errors import ConfigError, OpdockError
from opdock.nn.generation import FinishReason
from opdock.nn.sampling import SamplingParams

if TYPE_CHECKING:
    import torch


class DrawError(OpdockError, ArithmeticError):
    """No token can be drawn from the logits of a request; the message names it."""


def whole(name: str, number: object, least: int) -> int:
    """Return a whole number; ConfigError, with ``name``, for anything else and for one below ``least``."""
    try:
        found = operator.index(number)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(
            f"{name}={number!r} is no whole number.", remedy=f"use a whole number from {least}."
        ) from None
    if found < least:
        raise ConfigError(f"{name}={found} is not possible.", remedy=f"use a number from {least}.")
    return found


def token_list(tokens: Any) -> list[int]:
    """Return the ids of a prompt as a list; ConfigError for anything but whole numbers in a row."""
    try:
        return [operator.index(t) for t in (tokens.tolist() if hasattr(tokens, "tolist") else tokens)]
    except TypeError:
        raise ConfigError(
            f"The prompt is no row of token ids: {reprlib.repr(tokens)}.",
            remedy="encode the text with the model's tokenizer, and give a list of whole numbers.",
        ) from None


@dataclass(frozen=True)
class Output:
    """What a step made for one request.

    Args:
        request: its id.
        token: the new token; None where a stop token came, which is not given out.
        finish_reason: why the request ended with this step, or None while it goes on.
    """

    request: int
    token: int | None
    finish_reason: FinishReason | None


@dataclass(eq=False)
class Request:
    """The state of one request; only its batch changes it.

    Args:
        id: number in the batch.
        tokens: the prompt, then every token made.
        limit: the most tokens to make.
        full: whether it is the context that sets the limit.
        sampling: how each token is chosen.
        stop: ids that end the text.
        blocks: of the cache, for every position that the request can reach: it never waits for one.
        generator: source of random numbers, or None.
        scheduled: positions whose keys and values are computed, or will be by the steps in flight.
        made: tokens made so far, a stop token not counted.
        over: whether it ended or was removed.
    """

    id: int
    tokens: list[int]
    limit: int
    full: bool
    sampling: SamplingParams
    stop: frozenset[int]
    blocks: list[int]
    generator: torch.Generator | None = None
    scheduled: int = 0
    made: int = 0
    over: bool = False
    prompt_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        """Count the prompt."""
        self.prompt_tokens = len(self.tokens)

    @property
    def last_position(self) -> int:
        """Number of positions after the last step: the last token made is never fed back."""
        return self.prompt_tokens + self.limit - 1

    @property
    def decoding(self) -> bool:
        """Whether its next step has one token, which the step before chose."""
        return self.scheduled >= self.prompt_tokens

    def accept(self, token: int) -> Output:
        """Keep the token that a step chose, and say what is given out."""
        if token in self.stop:
            return Output(self.id, None, "stop")
        self.tokens.append(token)
        self.made += 1
        reason: FinishReason | None = None
        if self.made >= self.limit:
            reason = "context" if self.full else "length"
        return Output(self.id, token, reason)


@dataclass(frozen=True, eq=False)
class Part:
    """The tokens of one request in one step: ``count`` from position ``start``."""

    request: Request
    start: int
    count: int

    @property
    def end(self) -> int:
        """The position behind the last."""
        return self.start + self.count

    @property
    def samples(self) -> bool:
        """Whether the step chooses a token for the request: its last part of the prompt, or a decode."""
        return self.end >= self.request.prompt_tokens


def plan_step(requests: Iterable[Request], most_tokens: int, *, part: int | None = None) -> list[Part]:
    """Return the parts of the next step: every decode, then prompts in the order of joining, while tokens are left.

    Args:
        requests: that are not over, in the order of joining.
        most_tokens: of the step; a prompt that does not fit is computed in parts.
        part: the tokens of every part of a prompt but its last; a part that does not fit whole waits. None: what fits.
    """
    waiting: Sequence[Request] = [r for r in requests if not r.decoding]
    parts = [Part(r, r.scheduled, 1) for r in requests if r.decoding and r.scheduled < r.last_position]
    left = most_tokens - len(parts)
    for request in waiting:
        rest = request.prompt_tokens - request.scheduled
        count = min(rest, left if part is None else part)
        if not 0 < count <= left:
            break
        parts.append(Part(request, request.scheduled, count))
        left -= count
    return parts
