"""Running a program of ours in a fresh interpreter, in bounded time, and taking one answer from it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_TAIL = 2000  # characters kept of what a child printed
_MOST_ANSWER = 1 << 20


@dataclass(frozen=True)
class Told:
    """What a child did.

    Args:
        answer: the JSON object that it wrote; None if it ended, or time did, without one.
        how: how it ended, in words; ``timeout`` if it was stopped.
        output: the end of what it printed, without control characters.
    """

    answer: dict[str, Any] | None
    how: str
    output: str


def run_python(
    start: str,
    arguments: Sequence[str],
    *,
    timeout: float,
    environ: Mapping[str, str] | None = None,
    folder: str | None = None,
    path: Sequence[str] | None = None,
) -> Told:
    """Run ``python -c start FD ARGUMENTS PATH...`` and take the JSON object that it writes to the descriptor FD.

    Its process group is killed in the end. What it prints goes to a file, and is no answer.

    Args:
        start: the program; it sets ``sys.path`` to what follows the arguments.
        arguments: of the program.
        timeout: seconds.
        environ: variables besides this process's own.
        folder: its current folder; None is this process's.
        path: its ``sys.path``; None is this process's.
    """
    read, write = os.pipe()
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-c", start, str(write), *arguments, *map(str, sys.path if path is None else path)],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
            pass_fds=(write,),
            start_new_session=True,
            env={**os.environ, **(environ or {})},
            cwd=folder,
        )
        os.close(write)
        line, late = _read_line(read, timeout)
        if not late:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
        kill_group(process.pid)
        process.wait()
        printed.seek(max(0, printed.seek(0, os.SEEK_END) - _TAIL))
        output = printable_tail(printed.read())
    return Told(_parsed(line), "timeout" if late else how_it_ended(process.returncode), output)


def _parsed(line: bytes) -> dict[str, Any] | None:
    with contextlib.suppress(ValueError):
        answer = json.loads(line)
        if isinstance(answer, dict):
            return answer
    return None


def kill_group(pid: int) -> None:
    """Kill a process and all that it started in its session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def how_it_ended(code: int) -> str:
    """Return a return code in words."""
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"signal {-code} ({signal.Signals(-code).name})"
    return f"signal {-code}"


def printable_tail(raw: bytes) -> str:
    """Return the end of what a child printed as text without control characters."""
    text = raw.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() or c == "\n" else "�" for c in text).strip()[-_TAIL:]


def _read_line(descriptor: int, timeout: float) -> tuple[bytes, bool]:
    """Read up to a newline; the second value says whether time ran out."""
    end, told = time.monotonic() + timeout, bytearray()
    try:
        while not told.endswith(b"\n") and len(told) < _MOST_ANSWER:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                return bytes(told), True
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                break
            told += chunk
        return bytes(told), False
    finally:
        os.close(descriptor)
