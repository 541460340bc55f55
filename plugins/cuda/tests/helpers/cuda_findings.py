"""What a test has looked at, many cases at once."""

from __future__ import annotations

import cuda_spans as spans
import torch
from cuda_spans import Span
from torch import Tensor


class Findings:
    """What was looked at. The answers stay on the device until all are asked for: waiting for each takes longer."""

    def __init__(self, device: str) -> None:
        self.case, self._device = "", device
        self._words: list[str] = []
        self._answers: list[Tensor] = []

    def add(self, what: str, right: Tensor) -> None:
        """Note an answer."""
        self._words.append(f"{self.case}: {what}")
        self._answers.append(right)

    def compare(self, what: str, got: Tensor, span: Span) -> None:
        """Note whether a result is right."""
        self.add(what, spans.right(got, span))

    def say(self, what: str) -> None:
        """Note something that is wrong."""
        self.add(what, torch.zeros((), dtype=torch.bool, device=self._device))

    def wrong(self) -> list[str]:
        """Return what was wrong, in words."""
        if not self._answers:
            return []
        answers = torch.stack(self._answers).tolist()
        return [words for words, right in zip(self._words, answers, strict=True) if not right]


class Detailed(Findings):
    """The same, with numbers, waiting for each answer."""

    def compare(self, what: str, got: Tensor, span: Span) -> None:
        """Note what is wrong with a result."""
        said = spans.wrong(got, span)
        self.add(f"{what}: {said}", torch.tensor(not said, device=self._device))
