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
from typing import Any

_TAIL = 2000  # characters kept of what a child printed


def run_python(
    start: str, arguments: Sequence[str], *, timeout: float, environ: Mapping[str, str], folder: str
) -> dict[str, Any]:
    """Run ``python -c start FD ARGUMENTS PATH...`` and return the JSON object that it writes to the descriptor FD.

    Its process group is killed in the end. What it prints goes to files, and is no answer.

    Args:
        start: the program; it sets ``sys.path`` to what follows the arguments.
        arguments: of the program.
        timeout: seconds.
        environ: variables besides this process's own.
        folder: its current folder.

    Returns: the object; or one whose ``status`` is ``timeout`` or ``exited``, with ``error`` in words.
    """
    read, write = os.pipe()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-c", start, str(write), *arguments, *map(str, sys.path)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            pass_fds=(write,),
            start_new_session=True,
            env={**os.environ, **environ},
            cwd=folder,
        )
        os.close(write)
        told, timed_out = _read_line(read, timeout)
        if not timed_out:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
        kill_group(process.pid)
        process.wait()
        with contextlib.suppress(ValueError):
            answer = json.loads(told)
            if isinstance(answer, dict):
                return answer
        err.seek(max(0, err.seek(0, os.SEEK_END) - _TAIL))
        tail = printable_tail(err.read())
    if timed_out:
        return {"status": "timeout", "error": f"no answer within {timeout:g} s", "trace": tail}
    return {"status": "exited", "error": f"the process ended with {how_it_ended(process.returncode)}", "trace": tail}


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
    text = raw.decode("utf-8", "replace")
    return "".join(c if c.isprintable() or c == "\n" else "�" for c in text).strip()[-_TAIL:]


def _read_line(descriptor: int, timeout: float) -> tuple[bytes, bool]:
    """Read up to a newline; the second value says whether time ran out."""
    end, told = time.monotonic() + timeout, bytearray()
    try:
        while not told.endswith(b"\n"):
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
