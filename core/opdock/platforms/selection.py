"""Choosing the platform: pure functions from candidates, settings and outcomes to one winner.

``sift`` says which candidates may be asked at all; somebody asks them; ``decide`` turns what they said into a
``Selection`` in which each candidate has exactly one verdict with a reason.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from opdock.errors import (
    OpdockError,
    PlatformConflictError,
    PlatformError,
    PlatformFailedError,
    PlatformNotFoundError,
    printable,
    suggest,
)
from opdock.platforms.who_may_run import name_fault, requirement_fault

if TYPE_CHECKING:
    from opdock.discovery.metadata import Candidate

VerdictName = Literal["activated", "declined", "failed", "filtered", "duplicate", "foreign"]
PENDING = "pending"

CPU_CLASS = "opdock.platforms.cpu.CpuPlatform"
UNSPECIFIED_CLASS = "opdock.platforms.interface.UnspecifiedPlatform"


@dataclass(frozen=True)
class Request:
    """What the user asked for: the values of the environment variables, and opdock's own version."""

    platform: str | None = None
    target_device: str | None = None
    plugins: tuple[str, ...] | None = None
    opdock_version: str = "0"

    @property
    def forced_cpu(self) -> bool:
        """Whether the CPU is wanted by name."""
        return (self.platform or "").lower() == "cpu" or (self.platform is None and self.target_device == "cpu")


@dataclass(frozen=True)
class Outcome:
    """What a candidate said when it was asked: a class path, a reason to decline, or an exception."""

    class_path: str | None = None
    reason: str = ""
    error: BaseException | None = None


@dataclass(frozen=True)
class Verdict:
    """What became of one candidate, and why."""

    name: str
    distribution: str
    version: str
    value: str
    verdict: str
    reason: str
    error: BaseException | None = field(default=None, compare=False)
    class_path: str | None = None

    @property
    def label(self) -> str:
        """Name, distribution, version and target in one line."""
        return printable(f"{self.name}  {self.distribution} {self.version}  {self.value}")


@dataclass(frozen=True)
class Selection:
    """The winner, or the error that is raised in its place, and the verdict of every candidate."""

    winner: str | None
    class_path: str | None
    reason: str
    verdicts: tuple[Verdict, ...] = ()
    warnings: tuple[str, ...] = ()
    error: PlatformError | None = None
    hints: tuple[str, ...] = ()


def matches(name: str, distribution: str, wanted: str) -> bool:
    """Return whether ``wanted`` names a candidate: entry point, distribution or first-party alias."""
    folded = wanted.lower().replace("-", "_")
    names = {name.lower(), distribution.lower().replace("-", "_")}
    return folded in names or f"opdock_{folded}" in names


def unknown_names(request: Request, known: Sequence[str]) -> tuple[str, ...]:
    """Return a warning for each name in ``VLLM_PLUGINS`` that no installed plugin has."""
    return tuple(
        f"VLLM_PLUGINS names {name!r}, which no installed plugin has. {suggest(name, set(known))}"
        for name in request.plugins or ()
        if name not in known
    )


def sift(candidates: Sequence[Candidate], request: Request) -> tuple[Verdict, ...]:
    """Return a verdict for each platform candidate that needs no asking; the others are ``pending``."""
    wanted = request.platform if not request.forced_cpu else None
    asked = [wanted is not None and matches(c.name, c.dist.name, wanted) for c in candidates]
    eligible = [c for c, f in zip(candidates, asked, strict=True) if f or c.dist.requires_opdock is not None]
    by_name = Counter(c.name for c in eligible if not c.dist.only_in_cwd)
    listed = request.plugins is not None
    out = []
    for c, forced in zip(candidates, asked, strict=True):
        verdict, reason = PENDING, ""
        fault = requirement_fault(c, request.opdock_version)
        if request.forced_cpu:
            verdict, reason = "filtered", f"{_cpu_because(request)}: no platform plugin is asked"
        elif request.platform is not None and not forced:
            verdict, reason = "filtered", f"OPDOCK_PLATFORM={request.platform} names another one"
        elif listed and not forced and c.name not in (request.plugins or ()):
            verdict, reason = "filtered", "not in VLLM_PLUGINS=" + ",".join(request.plugins or ())
        elif c.dist.only_in_cwd:
            verdict, reason = "filtered", "its metadata is found only through the current folder"
        elif c.dist.requires_opdock is None and not forced:
            verdict, reason = "foreign", f"{c.dist.name} does not require opdock: written for another host"
        elif by_name[c.name] > 1:
            others = ", ".join(f"{o.dist.name} {o.dist.version}" for o in eligible if o.name == c.name and o is not c)
            verdict, reason = "duplicate", f"{others} has an entry point of the same name"
        elif fault and c.dist.requires_opdock is not None:
            verdict, reason = "failed", fault
        elif name_fault(c) and not forced:
            verdict, reason = "failed", name_fault(c)
        out.append(Verdict(c.name, c.dist.name, c.dist.version, c.value, verdict, reason))
    return tuple(out)


def decide(
    verdicts: Sequence[Verdict],
    outcomes: Mapping[int, Outcome],
    request: Request,
    builtins: Mapping[str, str],
) -> Selection:
    """Return the selection.

    Args:
        verdicts: from ``sift``.
        outcomes: by position in ``verdicts``, one for each that was pending.
        request: as for ``sift``.
        builtins: class paths of the built-in platforms that are active, by name.
    """
    final = tuple(_with_outcome(v, outcomes[i]) if v.verdict == PENDING else v for i, v in enumerate(verdicts))
    active = [v for v in final if v.verdict == "activated"]
    failed = [v for v in final if v.verdict == "failed"]

    def done(
        winner: str | None,
        path: str | None,
        reason: str,
        error: PlatformError | None = None,
        warnings: tuple[str, ...] = (),
    ) -> Selection:
        losers = tuple(
            replace(v, verdict="declined", reason=f"active, but {winner} was chosen")
            if error is None and v.verdict == "activated" and v.name != winner
            else v
            for v in final
        )
        return Selection(winner, path, reason, losers, warnings, error)

    contradiction = _contradiction(final, request)
    if contradiction is not None:
        return done(None, None, contradiction.what, contradiction)
    if request.forced_cpu:
        return done("cpu", CPU_CLASS, _cpu_because(request))
    duplicates = [v for v in final if v.verdict == "duplicate"]
    if duplicates:
        return done(None, None, "one name in two distributions", _duplicate(duplicates))
    if request.platform is not None:
        if len(active) == 1:
            return done(active[0].name, active[0].class_path, f"OPDOCK_PLATFORM={request.platform}")
        return done(None, None, "the platform asked for cannot be had", _not_to_be_had(final, request))
    named = [v for v in failed if v.name in (request.plugins or ())]
    if named:
        return done(None, None, "a plugin named in VLLM_PLUGINS failed", _failed(named, "it is named in VLLM_PLUGINS"))
    if len(active) > 1:
        return done(None, None, "several out-of-tree platforms are active", _conflict(active))
    if active:
        warnings = tuple(f"Platform plugin {v.label} failed and is left out: {v.reason}" for v in failed)
        return done(active[0].name, active[0].class_path, "the one active out-of-tree platform", None, warnings)
    if failed:
        return done(None, None, "no platform is active and a plugin failed", _failed(failed, "no other is active"))
    return done(*_without_plugins(request, builtins))


def _without_plugins(
    request: Request, builtins: Mapping[str, str]
) -> tuple[str | None, str | None, str, PlatformError | None]:
    """Return winner, class path, reason and error where no plugin is active and none failed."""
    reason = "no out-of-tree platform is active"
    if request.target_device == "empty":
        return "unspecified", UNSPECIFIED_CLASS, f"VLLM_TARGET_DEVICE=empty and {reason}", None
    if len(builtins) > 1:
        return None, None, "several built-in platforms are active", _builtins_conflict(builtins)
    name, path = next(iter(builtins.items()), ("cpu", CPU_CLASS))
    return name, path, f"{reason}: the built-in {name.upper()}", None


def _with_outcome(verdict: Verdict, outcome: Outcome) -> Verdict:
    if outcome.error is not None:
        return replace(verdict, verdict="failed", reason=outcome.reason or _short(outcome.error), error=outcome.error)
    if outcome.class_path is None:
        return replace(
            verdict, verdict="declined", reason=outcome.reason or "register() returned None, no reason given"
        )
    return replace(verdict, verdict="activated", reason=outcome.reason or "active", class_path=outcome.class_path)


def _short(error: BaseException) -> str:
    return error.what if isinstance(error, OpdockError) else f"{type(error).__name__}: {error}"


def _cpu_because(request: Request) -> str:
    return "OPDOCK_PLATFORM=cpu" if request.platform else "VLLM_TARGET_DEVICE=cpu"


def _contradiction(verdicts: Sequence[Verdict], request: Request) -> PlatformConflictError | None:
    wanted, target, clash = (request.platform or "").lower(), request.target_device, None
    asked = {v.name for v in verdicts if wanted and matches(v.name, v.distribution, wanted)}
    if (wanted and wanted != "cpu" and target == "cpu") or (wanted == "cpu" and target == "empty"):
        clash = f"VLLM_TARGET_DEVICE={target}"
    elif asked and wanted != "cpu" and request.plugins is not None and not asked & set(request.plugins):
        clash = "VLLM_PLUGINS=" + ",".join(request.plugins)
    if clash is None:
        return None
    return PlatformConflictError(
        f"OPDOCK_PLATFORM={request.platform} and {clash} contradict each other.",
        why="one asks for a platform that the other excludes.",
        remedy=f"unset {clash.partition('=')[0]} or OPDOCK_PLATFORM.",
    )


def _conflict(active: Sequence[Verdict]) -> PlatformConflictError:
    names = [v.name for v in active]
    return PlatformConflictError(
        f"{len(active)} out-of-tree platforms are active, a process can use one.",
        who=[f"{v.label}  {v.reason}" for v in active],
        remedy=f"set OPDOCK_PLATFORM={names[0]} (or {', '.join(names[1:])}), set VLLM_PLUGINS to the names that may "
        "run, or uninstall the distributions that you do not use.",
    )


def _builtins_conflict(builtins: Mapping[str, str]) -> PlatformConflictError:
    return PlatformConflictError(
        f"{len(builtins)} built-in platforms are active, a process can use one.",
        who=[f"{name}  {path}" for name, path in builtins.items()],
        remedy=f"set OPDOCK_PLATFORM={next(iter(builtins))}.",
    )


def _duplicate(same: Sequence[Verdict]) -> PlatformConflictError:
    owners = sorted({v.distribution for v in same})
    if len(owners) == 1:
        return PlatformConflictError(
            f"{owners[0]} declares the platform plugin {same[0].name!r} more than once.",
            who=[v.label for v in same],
            remedy=f"keep one of the lines in its metadata, or leave it out: pip uninstall {owners[0]}.",
        )
    return PlatformConflictError(
        f"The name {same[0].name!r} of a platform plugin is in more than one distribution.",
        who=[v.label for v in same],
        why="which of them would run depended on the order of folders.",
        remedy=f"pip uninstall {' '.join(owners[1:])} (keep one of them).",
    )


def _failed(failed: Sequence[Verdict], because: str) -> PlatformFailedError:
    why = [f"none is used in its place: {because}."]
    raised = [v.error for v in failed if v.error is not None and v.error.__traceback__ is not None]
    why += ["".join(traceback.format_exception(error)).rstrip() for error in raised]
    error = PlatformFailedError(
        "Platform plugin failed: " + "; ".join(f"{v.name}: {v.reason}" for v in failed),
        who=[v.label for v in failed],
        why=why,
        remedy=f"fix or upgrade {failed[0].distribution}; or leave it out: OPDOCK_PLATFORM=cpu, or VLLM_PLUGINS "
        "with the names of the plugins that may run.",
    )
    causes = [v.error for v in failed if v.error is not None]
    if len(causes) == 1:
        error.__cause__ = causes[0]
    return error


def _not_to_be_had(verdicts: Sequence[Verdict], request: Request) -> PlatformError:
    asked = [v for v in verdicts if v.verdict != "filtered" or "current folder" in v.reason]
    if not asked:
        known = sorted({v.name for v in verdicts} | {"cpu"})
        return PlatformNotFoundError(
            f"OPDOCK_PLATFORM={request.platform}: no installed distribution has a platform plugin of that name.",
            remedy=suggest(request.platform or "", known),
        )
    active = [v for v in asked if v.verdict == "activated"]
    if active:
        return _conflict(active)
    failed = [v for v in asked if v.verdict == "failed"]
    if failed:
        return _failed(failed, f"OPDOCK_PLATFORM={request.platform} names it")
    return PlatformNotFoundError(
        f"OPDOCK_PLATFORM={request.platform}: " + "; ".join(f"{v.name} {v.verdict}: {v.reason}" for v in asked),
        who=[v.label for v in asked],
        remedy="unset OPDOCK_PLATFORM to let opdock detect the platform, or set OPDOCK_PLATFORM=cpu.",
    )
