"""What a plugin's entry point uses: ``platform_plugin`` and ``decline``. Light: plugins import it first."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass
class Answer:
    """What a plugin said while it was asked, besides the class path.

    Args:
        reason: why it declines, in its words; "" where it gave none.
        declined: whether it called ``decline``.
    """

    reason: str = ""
    declined: bool = False


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
        answer.reason, answer.declined = reason, True


def platform_plugin(class_path: str, *, probe: str | Callable[[], object] | None = None) -> Callable[[], str | None]:
    """Return the callable that an entry point in ``vllm.platform_plugins`` names.

    It returns ``class_path`` when opdock asks and the probe finds the device, and None to anybody else: a
    package that serves opdock never changes what vLLM does.

    Args:
        class_path: ``package.module:Class`` of the platform; imported after it is chosen.
        probe: a function, or ``package.module:function``, without side effects. It returns None or True when
            the device is there; False, or the reason as a str, declines, and so does ``opdock.decline``. Any
            other value is a TypeError: a count of devices or a handle would be guessed at.
    """

    def register() -> str | None:
        answer = _asking.get()
        if answer is None:
            return None
        if probe is None:
            return class_path
        found = _function(probe)()
        if isinstance(found, str) or found is False:
            decline(found or answer.reason or "its probe found no device")
        elif found is not None and found is not True:
            raise TypeError(
                f"the probe of {class_path} returned {found!r}: expected None or True, or False or a reason"
            )
        return None if answer.declined else class_path

    register.class_path = class_path  # type: ignore[attr-defined] # what a check without the device looks at
    return register


def _function(probe: str | Callable[[], object]) -> Callable[[], object]:
    if not isinstance(probe, str):
        return probe
    module, colon, name = probe.partition(":")
    if not colon:
        module, _, name = probe.rpartition(".")
    found: Callable[[], object] = getattr(importlib.import_module(module.strip()), name.strip())
    return found
