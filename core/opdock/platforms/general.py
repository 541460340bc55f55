"""General plugins: callables that run once in each process, after the platform, each on its own."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable

from opdock import journal
from opdock.discovery import loading, metadata
from opdock.platforms import hooks, order
from opdock.platforms.who_may_run import may_run

logger = logging.getLogger("opdock")

_ran_in: set[int] = set()


def run_general_plugins(candidates: Iterable[metadata.Candidate], opdock_version: str) -> None:
    """Run every general plugin that may run, once in this process (a forked child runs them again).

    A plugin that raises is reported with its traceback, what it registered is undone, and the next one runs.
    """
    if os.getpid() in _ran_in:
        return
    _ran_in.add(os.getpid())
    seen: dict[str, metadata.Candidate] = {}
    for candidate in candidates:
        reason = may_run(candidate, opdock_version)
        if reason:
            logger.debug("General plugin %s does not run: %s", candidate.label, reason)
        elif candidate.name in seen:
            logger.warning(
                "General plugin %s does not run: %s has the name already.",
                candidate.label,
                seen[candidate.name].label,
            )
        else:
            seen[candidate.name] = candidate
            _run(candidate)


def _run(candidate: metadata.Candidate) -> None:
    try:
        with order.step("general plugin", candidate.label), journal.transaction(hooks.owner_of(candidate)):
            reason = loading.locate(candidate)
            if reason:
                raise ImportError(reason)
            plugin = loading.load(candidate)
            if not callable(plugin):
                raise TypeError(f"{candidate.value} is a {type(plugin).__name__}, not a callable")
            plugin()
    except (Exception, SystemExit):
        logger.warning("General plugin %s failed; the others go on.", candidate.label, exc_info=True)


def forget() -> None:
    """Let the plugins run again in this process; for ``reset``."""
    _ran_in.clear()
