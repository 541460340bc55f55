"""What an op chooses for given arguments, with a reason for every provider."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opdock.ir.impl import IrOpImpl


@dataclass(frozen=True)
class Verdict:
    """Whether one provider was chosen, and why or why not."""

    provider: str
    chosen: bool
    reason: str


@dataclass(frozen=True)
class Choice:
    """The provider that runs, and a verdict for every registered provider."""

    winner: IrOpImpl
    verdicts: tuple[Verdict, ...]

    @property
    def reason(self) -> str:
        """Why the winner was chosen."""
        return next(v.reason for v in self.verdicts if v.chosen)
