"""Asking one candidate, or a driver, in a child process, in bounded time, whatever its code does.

A child is no sandbox: what the plugin does to files or services is done.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ChildReport:
    """What a candidate did in a child.

    Args:
        status: activated, declined, failed, timeout, or exited (the process ended without an answer).
        reason: in words.
        seconds: how long it took.
        imported: number of modules that asking it imported.
        class_path: what it returned, when activated.
        trace: the end of the traceback, when it raised.
    """

    status: str
    reason: str
    seconds: float
    imported: int = 0
    class_path: str | None = None
    trace: str = ""


_TRACE = 4000  # characters kept of a traceback

# Not `-m`: that puts the current folder on the path, before the first import of the child.
_START = "import sys; sys.path[:] = sys.argv[4:]; from opdock.platforms import child; child.main(*sys.argv[1:4])"


def probe_in_child(name: str, *, timeout: float, distribution: str | None = None) -> ChildReport:
    """Ask the platform plugin ``name`` in a new process and return what it did within ``timeout`` seconds."""
    reply = ask(_START, name, distribution or "", *map(str, sys.path), timeout=timeout)
    told = reply.told
    if told is None:
        return ChildReport("timeout" if reply.timed_out else "exited", reply.how, reply.seconds)
    status, reason, trace = (str(told.get(key, "")) for key in ("status", "reason", "trace"))
    return ChildReport(status, reason, reply.seconds, int(told.get("imported", 0)), told.get("class_path"), trace)


@dataclass(frozen=True)
class Reply:
    """What a program answered in a process of its own.

    Args:
        told: its answer; None without one.
        how: without one, in words: that the time was up, or how it ended and the last line of its errors.
        timed_out: whether the time was up.
        seconds: how long it took.
    """

    told: dict[str, Any] | None
    how: str
    timed_out: bool
    seconds: float


def ask(program: str, *arguments: str, timeout: float, options: Sequence[str] = ()) -> Reply:
    """Run Python code in a new process and return what it answers, in bounded time, whatever a driver does.

    Args:
        program: it writes its answer, one JSON object and a newline, to the descriptor ``int(sys.argv[1])``; what
            it prints is not read. A process that waits in a driver and does not die is left to the system.
        arguments: its ``sys.argv[2:]``.
        timeout: seconds.
        options: of the interpreter, for example ``-I``.
    """
    read, write = os.pipe()  # the plugin's own output is not trusted to carry the answer
    read_err, write_err = os.pipe()
    command = [sys.executable, *options, "-c", program, str(write), *arguments]
    start = time.monotonic()
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(  # noqa: S603 - our own programs
        command, stdin=nothing, stdout=nothing, stderr=write_err, pass_fds=(write,), start_new_session=True
    )
    os.close(write)
    os.close(write_err)
    answer, tail = bytearray(), bytearray()
    readers = [
        threading.Thread(target=_drain, args=(read, answer, 1 << 20), daemon=True),
        threading.Thread(target=_drain, args=(read_err, tail, 1 << 14), daemon=True),
    ]
    for reader in readers:
        reader.start()
    while readers[0].is_alive() and process.poll() is None and time.monotonic() - start < timeout:
        readers[0].join(0.02)
    timed_out = readers[0].is_alive() and process.poll() is None
    if not timed_out:
        readers[0].join(0.2)  # a process that it started may hold the pipe longer
        _wait(process)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    _wait(process)
    if process.returncode is None:
        process.returncode = -signal.SIGKILL  # else Python warns of a child that is left to the system
    readers[1].join(0.5)  # its last line may be the reason; a process that left the session may hold the pipe
    told = _parse(bytes(answer))
    how = f"no answer within {timeout:g} s" if timed_out else _how_ended(process.returncode, bytes(tail))
    return Reply(told, "" if told is not None else how, timed_out and told is None, time.monotonic() - start)


def _wait(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1.0)


def _how_ended(code: int, errors: bytes) -> str:
    last = errors.decode("utf-8", "replace").strip().splitlines()
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return f"the process ended with {how}" + (f": {last[-1]}" if last else "")


def _drain(descriptor: int, into: bytearray, most: int) -> None:
    """Read to the end, or to the newline that ends an answer, and close: the reader alone knows when it is done."""
    try:
        while chunk := os.read(descriptor, 1 << 16):
            into += chunk
            del into[:-most]
            if most == 1 << 20 and into.endswith(b"\n"):
                return
    finally:
        os.close(descriptor)


def _parse(answer: bytes) -> dict[str, Any] | None:
    try:
        told = json.loads(answer.decode().strip().splitlines()[-1])
    except (ValueError, IndexError):
        return None
    return told if isinstance(told, dict) else None


class _Missed:
    """Stands last among the finders, and so sees what a package looks for in vain, even if it hides that.

    Args:
        package: whose imports count.
    """

    def __init__(self, package: str) -> None:
        self.package = package
        self.names: list[str] = []

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Note the name of a module that no finder knows."""
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("importlib"):
            frame = frame.f_back
        importer = str(frame.f_globals.get("__name__", ""))
        if importer.partition(".")[0] == self.package and name not in self.names:
            self.names.append(name)

    def __str__(self) -> str:
        """Return the end of a sentence, "" when nothing was missed."""
        return f"; not installed: {', '.join(self.names)}" if self.names else ""


def _ask(name: str, distribution: str) -> dict[str, object]:
    """Ask the candidate in this process; the body of the child."""
    from opdock.discovery import loading, metadata, selecting
    from opdock.platforms import current

    before = len(sys.modules)
    for candidate in metadata.scan().candidates_of(metadata.PLATFORM_GROUP):
        if candidate.name == name and distribution in ("", candidate.dist.name):
            break
    else:
        return {"status": "failed", "reason": f"no platform plugin is called {name!r}"}
    reason = loading.locate(candidate)
    if reason:
        return {"status": "failed", "reason": reason}
    missed = _Missed(candidate.value.partition(":")[0].partition(".")[0])
    sys.meta_path.append(missed)
    # A plugin that needs the platform now must get the error that it gets in earnest. Resolving here would run
    # the code of every other plugin.
    current._state.thread, current._state.first_module = threading.get_ident(), __name__
    current._state.asking = candidate.label
    try:
        register = loading.load(candidate)
        with selecting.asking() as answer:
            path = register() if callable(register) else register
        if path is None:
            told = answer.reason or f"register() returned None, no reason given{missed}"
            return {"status": "declined", "reason": told, "imported": len(sys.modules) - before}
        if not isinstance(path, str) or not path.strip():
            return {
                "status": "failed",
                "reason": f"register() returned {path!r}, expected a class path or None",
            }
        cls = loading.resolve_class(path, candidate)
    except BaseException as err:  # noqa: BLE001 - whatever it raises is the answer
        what = getattr(err, "what", None) or f"{type(err).__name__}: {err}"
        trace = "".join(traceback.format_exception(err))[-_TRACE:]
        return {"status": "failed", "reason": what, "imported": len(sys.modules) - before, "trace": trace}
    return _judge(path, cls, imported=len(sys.modules) - before)


def _judge(path: str, cls: object, *, imported: int) -> dict[str, object]:
    from opdock.platforms.hook_check import check_platform_class

    fatal = [f.text for f in check_platform_class(cls) if f.fatal]
    status = "failed" if fatal else "activated"
    return {"status": status, "reason": "; ".join(fatal), "imported": imported, "class_path": path}


def main(descriptor: str, name: str, distribution: str) -> None:
    """Ask the candidate, write the answer to the pipe and end at once, whatever the plugin left running."""
    result = json.dumps(_ask(name, distribution)) + "\n"
    os.write(int(descriptor), result.encode())
    os._exit(0)
