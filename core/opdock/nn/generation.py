"""Text generation, one token at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch

from opdock import context
from opdock.errors import ConfigError
from opdock.nn.invariant import follow, in_force, refuse_compiled
from opdock.nn.loading import LoadedModel, load_model
from opdock.nn.sampling import SamplingParams, make_generator, remember, sample

if TYPE_CHECKING:
    from opdock.nn.models.config import ModelConfig
    from opdock.nn.models.decoder import CausalDecoder

__all__ = [
    "FinishReason",
    "Generation",
    "LoadedModel",
    "SamplingParams",
    "check_request",
    "generate",
    "load_model",
    "stream_text",
]

FinishReason: TypeAlias = Literal["stop", "length", "context"]


class Generation(Iterator[int]):
    """The tokens of one text as they come; made by ``generate``.

    Attributes:
        prompt_tokens: number of tokens of the prompt.
        new_tokens: number of tokens made so far, a stop token not counted.
        finish_reason: None while more may come; then ``stop`` (a stop token came), ``length`` (max_tokens are
            made) or ``context`` (the model's context is full).
    """

    def __init__(
        self,
        model: CausalDecoder,
        tokens: Sequence[int],
        sampling: SamplingParams,
        max_tokens: int,
        stop_tokens: Iterable[int],
    ) -> None:
        """Allocate the cache; nothing is computed yet."""
        follow()
        if in_force():
            refuse_compiled(model)
        self._model, self._sampling = model, sampling
        self._stop = frozenset(stop_tokens)
        self._room = model.config.max_position - len(tokens)
        self._limit = min(max_tokens, self._room)
        self._inference = context.platform().inference_mode
        self.prompt_tokens, self.new_tokens = len(tokens), 0
        self.finish_reason: FinishReason | None = None
        device = model.model.embed_tokens.weight.device
        # One sequence needs no blocks: attention reads one stretch of memory and gathers nothing, which on a CPU saves
        # an eighth of a step at 512 positions. Several requests together are what opdock.nn.batch is for.
        with self._inference():
            # the last token made is never fed back
            self._cache = model.new_cache(len(tokens) + self._limit - 1)
            self._input = torch.tensor(list(tokens), dtype=torch.long, device=device)
            self._positions = torch.arange(len(tokens) + self._limit, device=device)
            self._generator = make_generator(sampling, device)

    def __next__(self) -> int:
        """Return the next token; StopIteration once ``finish_reason`` is set. After an error it can be asked again."""
        if self.finish_reason is not None:
            raise StopIteration
        start = self._cache.length
        put_back = remember((self._generator,))
        try:
            with self._inference():
                positions = self._positions[start : start + self._input.shape[0]]
                hidden = self._model(self._input, positions, self._cache)
                logits = self._model.compute_logits(hidden[-1:])
                following = sample(logits, self._sampling, self._generator)
                token = int(following)
        except BaseException:
            self._cache.length = start
            put_back()
            raise
        self._input = following
        if token in self._stop:
            self._finish("stop")
            raise StopIteration
        self.new_tokens += 1
        if self.new_tokens >= self._limit:
            self._finish("context" if self._limit == self._room else "length")
        return token

    def _finish(self, reason: FinishReason) -> None:
        self.finish_reason = reason
        del self._cache  # a finished text needs no memory


def generate(
    model: CausalDecoder,
    tokens: Sequence[int],
    sampling: SamplingParams | None = None,
    *,
    max_tokens: int = 128,
    stop_tokens: Iterable[int] = (),
) -> Generation:
    """Return the tokens that follow ``tokens``, computed one by one as they are asked for.

    Args:
        model: with loaded weights.
        tokens: ids of the prompt.
        sampling: how each token is chosen; None is greedy.
        max_tokens: the most tokens to make, at least 1; the model's context may end it earlier.
        stop_tokens: ids that end the text; they are not given out.

    Raises: ConfigError before any work for an empty prompt, an id outside the vocabulary, a prompt that fills
        the context, or max_tokens below 1.
    """
    check_request(tokens, model.config, max_tokens)
    return Generation(model, tokens, sampling or SamplingParams(), max_tokens, stop_tokens)


def check_request(tokens: Sequence[int], config: ModelConfig, max_tokens: int) -> None:
    """Raise ConfigError for a request that ``generate`` would refuse; no weights are needed."""
    if max_tokens < 1:
        raise ConfigError(f"max_tokens={max_tokens} is not possible.", remedy="use a number from 1.")
    vocab_size, max_position = config.vocab_size, config.max_position
    if not tokens:
        raise ConfigError("The prompt is empty.", remedy="give at least one token.")
    if len(tokens) >= max_position:
        raise ConfigError(
            f"The prompt has {len(tokens)} tokens, and the model's context holds {max_position}.",
            why="At least one place must be left for the answer.",
            remedy=f"shorten the prompt to {max_position - 1} tokens or fewer.",
        )
    outside = next((t for t in tokens if not 0 <= t < vocab_size), None)
    if outside is not None:
        raise ConfigError(
            f"The prompt holds the token id {outside}, and the model knows 0 to {vocab_size - 1}.",
            remedy="encode the prompt with the tokenizer of this model.",
        )


def stream_text(
    loaded: LoadedModel,
    tokens: Sequence[int],
    sampling: SamplingParams | None = None,
    *,
    max_tokens: int = 128,
) -> Iterator[str]:
    """Yield the text that follows ``tokens``, piece by piece, no character split, until the model ends it.

    Args:
        loaded: model and tokenizer.
        tokens: ids of the prompt.
        sampling: see ``generate``.
        max_tokens: see ``generate``.

    Raises: ConfigError at the call, as ``generate``.
    """
    made = generate(loaded.model, tokens, sampling, max_tokens=max_tokens, stop_tokens=loaded.config.eos_token_ids)
    return _pieces(made, loaded)


def _pieces(made: Generation, loaded: LoadedModel) -> Iterator[str]:
    decoder = loaded.tokenizer.stream()
    for token in made:
        piece = decoder.push(token)
        if piece:
            yield piece
    rest = decoder.flush()
    if rest:
        yield rest
