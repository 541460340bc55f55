"""What an op chooses for given arguments, with a reason for every provider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opdock.ir.predicate import refusal
from opdock.ir.schema import NATIVE

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
    """The provider that runs, and a verdict for every registered one: first those that are tried, in order."""

    winner: IrOpImpl
    verdicts: tuple[Verdict, ...]

    @property
    def reason(self) -> str:
        """Why the winner was chosen."""
        return next(v.reason for v in self.verdicts if v.chosen)


def explain(
    known: Mapping[str, IrOpImpl],
    tried: Sequence[IrOpImpl],
    left_out: Mapping[str, str],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Choice:
    """Return the choice among ``tried`` for these arguments.

    Args:
        known: every registered provider.
        tried: what the priority in force is filtered to; empty while none is set.
        left_out: why other providers in the priority list are not tried.
        args: positional arguments, real or fake.
        kwargs: the other arguments.
    """
    winner: IrOpImpl | None = None
    verdicts: dict[str, Verdict] = {}
    for impl in tried:
        if winner is not None:
            reason = f"{winner.provider} comes before it and takes these arguments"
        else:
            reason = refusal(impl.predicate, args, kwargs)
            if not reason:
                winner = impl
                reason = _why_chosen(impl, tried, left_out)
        verdicts.setdefault(impl.provider, Verdict(impl.provider, chosen=impl is winner, reason=reason))
    if winner is None:
        winner = known[NATIVE]
        verdicts[NATIVE] = Verdict(NATIVE, chosen=True, reason="no priority is set: the native definition runs")
    for name, impl in known.items():
        default = "not in the priority list" if tried else "no priority is set"
        reason = left_out.get(name) or impl.reason or default
        verdicts.setdefault(name, Verdict(name, chosen=False, reason=reason))
    return Choice(winner, tuple(verdicts.values()))


def _why_chosen(impl: IrOpImpl, tried: Sequence[IrOpImpl], left_out: Mapping[str, str]) -> str:
    if impl is tried[0]:
        reason = "first in the priority"
    elif impl.is_native:
        reason = "nothing before it takes these arguments"
    else:
        reason = "first in the priority that takes these arguments"
    if "VLLM_BATCH_INVARIANT" in left_out.get(impl.provider, ""):
        reason += "; it does not declare batch_invariant either, but nothing follows it"
    return reason + ("; VLLM_BATCH_INVARIANT=1: row by row" if impl.generation < 0 else "")
