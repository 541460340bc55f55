"""One text through a batch of one: what ``generate`` returns, with decode steps replayed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from opdock.nn.batch.batch import Batch
from opdock.nn.generation import FinishReason
from opdock.nn.sampling import SamplingParams

if TYPE_CHECKING:
    from opdock.nn.batch.capture import Capture
    from opdock.nn.models.decoder import CausalDecoder


class ReplayedGeneration(Iterator[int]):
    """The tokens of one text as they come, decode steps captured once and replayed.

    Args:
        model: with loaded weights.
        tokens: ids of the prompt.
        sampling: how each token is chosen; None is greedy.
        max_tokens: the most tokens to make, at least 1; the model's context may end it earlier.
        stop_tokens: ids that end the text; they are not given out.
        capture: what makes a graph of a step; None takes the device's own.

    Attributes:
        prompt_tokens, new_tokens, finish_reason: as of ``Generation``.

    Raises: as ``generate``, and UnsupportedError where the platform has no graphs.
    """

    def __init__(
        self,
        model: CausalDecoder,
        tokens: Sequence[int],
        sampling: SamplingParams | None = None,
        *,
        max_tokens: int = 128,
        stop_tokens: Iterable[int] = (),
        capture: Capture | None = None,
    ) -> None:
        """Allocate the cache; nothing is computed yet."""
        self.prompt_tokens, self.new_tokens = len(tokens), 0
        self.finish_reason: FinishReason | None = None
        longest = len(tokens) + max(max_tokens, 1) + 1  # one more than asked for: only the model's context ends it
        self._batch = Batch(model, max_requests=1, max_len=longest, graphs=True, capture=capture)
        try:
            self._batch.add(tokens, sampling, max_tokens=max_tokens, stop_tokens=stop_tokens)
        except BaseException:  # whoever keeps the error keeps this object
            self._batch.close()
            raise

    def __next__(self) -> int:
        """Return the next token; StopIteration once ``finish_reason`` is set."""
        outputs = self._batch.step() if self.finish_reason is None else []
        while not outputs and self._batch.running:  # a part of a long prompt
            outputs = self._batch.step()
        if not outputs:
            raise StopIteration
        (made,) = outputs
        if made.finish_reason is not None:
            self.finish_reason = made.finish_reason
            self._batch.close()
        if made.token is None:
            raise StopIteration
        self.new_tokens += 1
        return made.token
