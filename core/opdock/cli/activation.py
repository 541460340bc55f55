"""Activating the platform in a child process, for ``opdock doctor``: a hook may hang, exit or print.

A child is no sandbox: what a plugin does to files or services is done.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any, NoReturn


@dataclass(frozen=True)
class Activation:
    """What activating the platform did.

    Args:
        steps: of the initialisation order, each with ``step``, ``ms`` and ``detail``.
        messages: what the library logged as a warning.
        error: why there is no platform, "" if there is one.
    """

    steps: tuple[dict[str, Any], ...] = ()
    messages: tuple[str, ...] = ()
    error: str = ""


# Not `-m`: that puts the current folder on the path, before the first import of the child.
_START = "import sys; sys.path[:] = sys.argv[2:]; from opdock.cli import activation; activation.main(sys.argv[1])"


def activate_in_child(timeout: float) -> Activation:
    """Resolve the platform in a new process, within ``timeout`` seconds, and return what happened there."""
    read, write = os.pipe()  # a plugin's own output is not trusted to carry the answer
    process = subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-c", _START, str(write), *map(str, sys.path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(write,),
        start_new_session=True,
    )
    os.close(write)
    try:
        answer = _read_line(read, time.monotonic() + timeout)
    finally:
        os.close(read)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return _parse(answer, timeout)


def _read_line(descriptor: int, deadline: float) -> bytes | None:
    """Return what came up to a newline or the end; None when the time is up."""
    found = bytearray()
    while (left := deadline - time.monotonic()) > 0:
        if select.select([descriptor], [], [], left)[0]:
            chunk = os.read(descriptor, 1 << 16)
            found += chunk
            if not chunk or chunk.endswith(b"\n"):
                return bytes(found)
    return None


def _parse(answer: bytes | None, timeout: float) -> Activation:
    if answer is None:
        return Activation(
            error=f"PlatformFailedError: activating the platform took longer than {timeout:g} s.\n"
            "Remedy: OPDOCK_PLATFORM=cpu opdock doctor"
        )
    try:
        told = json.loads(answer)
        return Activation(tuple(told["steps"]), tuple(told["messages"]), str(told["error"]))
    except (ValueError, KeyError, TypeError):
        return Activation(
            error="PlatformFailedError: the process ended while the platform was being activated: a plugin made it "
            "exit, or it crashed.\nRemedy: OPDOCK_PLATFORM=cpu opdock doctor"
        )


class _Messages(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one message, with the last line of its traceback."""
        cause = record.exc_info[1] if record.exc_info else None
        self.texts.append(record.getMessage() + (f" {type(cause).__name__}: {cause}" if cause else ""))


def _activate() -> dict[str, Any]:
    """Resolve the platform in this process; the body of the child."""
    from opdock.platforms import current, order

    messages, error = _Messages(), ""
    logger = logging.getLogger("opdock")
    logger.addHandler(messages)
    logger.propagate = False
    try:
        current.resolve()
    except BaseException as err:  # noqa: BLE001 - whatever it raises is the answer
        error = f"{type(err).__name__}: {err}"
    steps = [{"step": s.name, "ms": round(s.seconds * 1e3, 2), "detail": s.detail} for s in order.steps()]
    return {"steps": steps, "messages": messages.texts, "error": error}


def main(descriptor: str) -> NoReturn:
    """Resolve the platform and write what happened to the file descriptor; the child's whole program."""
    view = memoryview((json.dumps(_activate()) + "\n").encode())
    with contextlib.suppress(BrokenPipeError):
        while view:
            view = view[os.write(int(descriptor), view) :]
    os._exit(0)
