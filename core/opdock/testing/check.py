"""A check: a function with a name, a kind of subject, and the checks that must have passed before it means anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from opdock.errors import OpdockError

PACKAGE, PROVIDER, REPLACEMENT, REPLACED, LAYER, MODEL = (
    "package",
    "provider",
    "replacement",
    "replaced",
    "layer",
    "model",
)
"""Kinds of subjects; replacements go by the name of the in-tree class, replaced layers by that of the op."""

FACTS, WORKER = "facts", "worker"
"""Where a check runs: on facts that were gathered in a child before, or in the child that holds the platform."""

MODULES = (
    "asking",
    "activation",
    "platform",
    "registration",
    "provider",
    "layouts",
    "calls",
    "layers",
    "decoder",
    "attention",
)
"""The modules of ``opdock.testing.checks``, in the order in which their checks run."""


class Fault(OpdockError):
    """What a check found to be wrong."""


class CannotRun(Exception):
    """A check cannot be run here; its text says why."""


@dataclass(frozen=True)
class Check:
    """One check.

    Args:
        name: ``area.rule``.
        kind: of its subjects.
        where: FACTS or WORKER.
        needs: names of checks that must have passed, of the same subject where they have it.
        after: names of checks that may not have failed; where they could not be run, this one is.
        rule: what must be true, one sentence.
        run: raises Fault or CannotRun; may return a note.
    """

    name: str
    kind: str
    where: str
    needs: tuple[str, ...]
    after: tuple[str, ...]
    rule: str
    run: Callable[..., str | None]


_checks: dict[str, Check] = {}


def check(
    name: str, *, kind: str = PACKAGE, where: str = WORKER, needs: Sequence[str] = (), after: Sequence[str] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds a function to the kit; the first line of its docstring is the rule."""

    def decorate(run: Callable[..., Any]) -> Callable[..., Any]:
        rule = (run.__doc__ or name).strip().splitlines()[0]
        _checks[name] = Check(name, kind, where, tuple(needs), tuple(after), rule, run)
        return run

    return decorate


def all_checks() -> dict[str, Check]:
    """Return every check by name, in the order in which they run, whichever module was imported first."""
    modules = [import_module(f"opdock.testing.checks.{module}").__name__ for module in MODULES]
    place = {name: number for number, name in enumerate(modules)}
    return dict(sorted(_checks.items(), key=lambda item: place.get(item[1].run.__module__, len(place))))
