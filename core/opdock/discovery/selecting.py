"""What a plugin's entry point uses: ``platform_plugin`` and ``decline``. Light: plugins import it first."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass
class Answer:
    """What a plugin said while it was asked, besides the class path."""

    reason: str = ""


_asking: ContextVar[Answer | None] = ContextVar("opdock.asking", default=None)


@contextlib.contextmanager
def asking() -> Iterator[Answer]:
    """Mark that opdock's own selection is asking; a plugin answers nobody else."""
    answer = Answer()
    token = _asking.set(answer)
    try:
        yield answer
    finally:
        _asking.reset(token)


def decline(reason: str) -> None:
    """Say why the platform is not for this machine, and return None: ``return opdock.decline("no device")``."""
    answer = _asking.get()
    if answer is not None:
        answer.reason = reason


def platform_plugin(class_path: str, *, probe: str | Callable[[], object] | None = None) -> Callable[[], str | None]:
    """Return the callable that an entry point in ``vllm.platform_plugins`` names.

    It returns ``class_path`` when opdock asks and the probe finds the device, and None to anybody else: a
    package that serves opdock never changes what vLLM does.

    Args:
        class_path: ``package.module:Class`` of the platform; imported after it is chosen.
        probe: a function, or ``package.module:function``, without side effects. It returns None or True when
            the device is there; False, or the reason as a str, declines, and so does ``opdock.decline``.
    """

    def register() -> str | None:
        answer = _asking.get()
        if answer is None:
            return None
        if probe is None:
            return class_path
        function = probe
        if isinstance(function, str):
            module, _, name = function.partition(":")
            function = getattr(importlib.import_module(module), name)
        found = function()
        if isinstance(found, str):
            answer.reason = found
        elif found is False and not answer.reason:
            answer.reason = "its probe found no device"
        return None if answer.reason else class_path

    return register
