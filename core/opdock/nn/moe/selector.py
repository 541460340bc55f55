"""The choice of a backend: a pure function of the problem and the backends, with a verdict for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opdock.errors import ConfigError, UnsupportedError, suggest
from opdock.nn.moe.backend import MoEBackend, MoEProblem

AUTO = "auto"


@dataclass(frozen=True)
class Verdict:
    """What became of one backend.

    Args:
        name: of the backend.
        chosen: whether it serves the layer.
        reason: why not, or why it was not asked; "" for the chosen one.
    """

    name: str
    chosen: bool
    reason: str


@dataclass(frozen=True)
class Selection:
    """The backend of a layer, and a verdict for every one, in the order in which they were tried."""

    name: str
    verdicts: tuple[Verdict, ...]

    def lines(self) -> list[str]:
        """Return a line for each verdict."""
        width = max(len(v.name) for v in self.verdicts)
        return [f"{v.name:{width}}  {'chosen' if v.chosen else v.reason}" for v in self.verdicts]


def reason_against(backend: type[MoEBackend], problem: MoEProblem) -> str:
    """Return why a backend cannot serve a problem, "" if it can."""
    if problem.batch_invariant and not backend.batch_invariant:
        return "it does not declare batch invariance, which VLLM_BATCH_INVARIANT=1 asks for"
    try:
        return backend.why_not(problem)
    except Exception as err:  # noqa: BLE001 - a package that is broken is no reason to do without the others
        return f"asked whether it can, it raised {type(err).__name__}: {str(err).partition(chr(10))[0]}"


def select(
    problem: MoEProblem, backends: Mapping[str, type[MoEBackend]], wanted: str = AUTO, *, layer: str = ""
) -> Selection:
    """Return the backend that serves a problem.

    Args:
        problem: the facts.
        backends: those that there are, by name.
        wanted: the one that must serve it, or ``auto``: the first that can, by falling rank and then by name.
        layer: the layer's path in its model, for messages.

    Raises: ConfigError with near matches for an unknown name; UnsupportedError if the wanted one cannot, or none can,
        with every reason.
    """
    order = sorted(backends, key=lambda name: (-backends[name].rank, name))
    if wanted != AUTO:
        if wanted not in backends:
            raise ConfigError(
                f"moe_backend={wanted!r} is unknown.", who=layer, remedy=suggest(str(wanted), [AUTO, *order])
            )
        reason = reason_against(backends[wanted], problem)
        if reason:
            able = [name for name in order if not reason_against(backends[name], problem)]
            raise UnsupportedError(
                f"The MoE backend {wanted!r} cannot serve this layer.",
                who=layer,
                why=reason,
                remedy=f'moe_backend="{able[0]}", or "auto".' if able else "register a backend that can.",
            )
        others = tuple(Verdict(n, False, f"moe_backend={wanted!r} was asked for") for n in order if n != wanted)
        return Selection(wanted, (Verdict(wanted, True, ""), *others))
    verdicts: list[Verdict] = []
    chosen = ""
    for name in order:
        reason = f"{chosen} comes before it" if chosen else reason_against(backends[name], problem)
        verdicts.append(Verdict(name, not reason, reason))
        chosen = chosen or ("" if reason else name)
    if not chosen:
        raise UnsupportedError(
            "No MoE backend can serve this layer.",
            who=layer,
            why=[f"{v.name}: {v.reason}" for v in verdicts],
            remedy="change what the last reason names, or register a backend that can.",
        )
    return Selection(chosen, tuple(verdicts))
