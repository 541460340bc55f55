"""The initialisation order that ran in this process, step by step, for ``opdock doctor``."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

logger = logging.getLogger("opdock")

_steps: list[Step] = []


@dataclass(frozen=True)
class Step:
    """One step: its name, how long it took in seconds, what it was about, and the process."""

    name: str
    seconds: float
    detail: str
    pid: int


def steps() -> tuple[Step, ...]:
    """Return the steps in the order in which they ended."""
    return tuple(_steps)


def forget() -> None:
    """Forget every step; for ``reset``."""
    _steps.clear()


@contextlib.contextmanager
def step(name: str, detail: str = "") -> Iterator[None]:
    """Record that the block ran, also when it raises."""
    logger.debug("Step begins: %s %s", name, detail)
    start, outcome = time.perf_counter(), detail
    try:
        yield
    except BaseException as err:
        outcome = f"{detail} raised {type(err).__name__}".strip()
        raise
    finally:
        _steps.append(Step(name, time.perf_counter() - start, outcome, os.getpid()))
