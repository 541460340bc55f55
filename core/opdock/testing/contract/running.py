"""``--run``: the entry module imported, asked and activated in child processes, in bounded time, with what it did.

A child is no sandbox: what a package does to files or services is done.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from opdock.discovery.entry_points import PLATFORM_GROUP
from opdock.testing.contract.checking import Result
from opdock.testing.contract.files import UnderPrefix
from opdock.testing.contract.findings import Finding, finding, in_order
from opdock.testing.contract.metadata import entries_of
from opdock.testing.contract.subject import Subject

_MOST_ANSWER, _MOST_OUTPUT = 1 << 20, 1 << 13
_MOST_UNPACKED = 4 << 30  # bytes of a wheel
# Not `-m`: that puts the current folder on the path, before the first import of the child.
_START = "import sys; sys.path[:] = sys.argv[5:]; from opdock.testing.contract import child; child.main(*sys.argv[1:5])"


@dataclass(frozen=True)
class Told:
    """What one child did.

    Args:
        answer: its own report; None if it ended without one.
        how: how it ended: in words.
        output: the end of what it printed, escaped by whoever shows it.
        seconds: how long it took.
    """

    answer: dict[str, Any] | None
    how: str
    output: str
    seconds: float


def with_run(result: Result, subject: Subject, *, timeout: float) -> Result:
    """Return the result with the findings of running the platform entry points too.

    Args:
        result: of the static check.
        subject: what is run.
        timeout: of each child, in seconds.
    """
    found: list[Finding] = list(result.findings)
    with _importable(subject) as path:
        for line in [e for e in entries_of(subject) if e.group == PLATFORM_GROUP]:
            found += run_entry(line.name, line.value or "", path, timeout=timeout)
    return replace(result, findings=in_order(found))


def run_entry(name: str, value: str, path: str | None, *, timeout: float) -> list[Finding]:
    """Ask one entry point in a child, then activate it in another; return what they did."""
    who = f"{name} = {value}"
    asked = ask("ask", value, path, timeout=timeout)
    out = list(_ended(who, "asking it", asked, timeout))
    if asked.answer is None or asked.answer.get("error"):
        return out
    out += _measured(who, asked)
    if not asked.answer.get("class_path"):
        reason = asked.answer.get("reason") or "no reason given"
        return [*out, finding("run-declined", f"{who} declined here: {reason}.")]
    done = ask("activate", value, path, timeout=timeout)
    return [*out, *_ended(who, "activating it", done, timeout)]


def _ended(who: str, what: str, told: Told, timeout: float) -> Iterator[Finding]:
    if told.how == "timeout":
        yield finding("run-timeout", f"{who}: {what} did not end within {timeout:g} s.", why=told.output[-500:])
    elif told.answer is None:
        yield finding("run-exited", f"{who}: {what} ended the process: {told.how}.", why=told.output[-500:])
    elif told.answer.get("error"):
        yield finding(
            "run-failed", f"{who}: {what} raised {told.answer['error']}.", why=str(told.answer.get("trace", ""))
        )


def _measured(who: str, told: Told) -> Iterator[Finding]:
    answer = told.answer or {}
    heavy = ", ".join(f"{name} {n}" for name, n in list(dict(answer.get("heaviest", {})).items())[:5])
    yield finding(
        "run-measured",
        f"{who}: {answer.get('modules', 0)} modules in {float(answer.get('seconds', 0)):.2f} s"
        + (f" ({heavy})" if heavy else "")
        + ".",
    )
    if answer.get("torch"):
        yield finding("run-imports-torch", f"{who}: asking it imports torch.", remedy="import it inside the functions.")
    if answer.get("device"):
        said = f"{who}: asking it initialised {answer['device']}."
        yield finding(
            "run-device", said, remedy="ask the driver's library (NVML for example) or look for device files."
        )
    if answer.get("environ"):
        yield finding("run-environ", f"{who}: it changed {', '.join(map(str, answer['environ']))}.")
    if answer.get("threads"):
        yield finding("run-threads", f"{who}: it left threads running: {', '.join(map(str, answer['threads']))}.")
    if told.output.strip():
        yield finding("run-output", f"{who}: it printed {len(told.output)} characters.", why=told.output[-500:])


@contextlib.contextmanager
def _importable(subject: Subject) -> Iterator[str | None]:
    """Yield the folder that makes the package importable; None for an installed one."""
    if subject.kind == "installed":
        yield None
    elif subject.kind == "wheel":
        with tempfile.TemporaryDirectory(prefix="opdock-check-") as folder:
            with zipfile.ZipFile(subject.path) as wheel:
                if sum(i.file_size for i in wheel.infolist()) <= _MOST_UNPACKED:
                    wheel.extractall(folder)  # it keeps members inside of the folder
            yield folder
    else:
        files = subject.package.files
        prefix = files.shown("") if isinstance(files, UnderPrefix) else ""
        yield str(Path(files.root, prefix))


def ask(task: str, value: str, path: str | None, *, timeout: float) -> Told:
    """Run one task on an entry point in a new interpreter and return what it did within ``timeout`` seconds."""
    read, write = os.pipe()  # a plugin's own output is not trusted to carry the answer
    out, into = os.pipe()
    folders = [*([path] if path else []), *map(str, sys.path)]
    start = time.monotonic()
    process = subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-c", _START, str(write), task, value, path or "", *folders],
        stdin=subprocess.DEVNULL,
        stdout=into,
        stderr=into,
        pass_fds=(write,),
        start_new_session=True,
    )
    os.close(write)
    os.close(into)
    answer, printed = bytearray(), bytearray()
    readers = [
        threading.Thread(target=_drain, args=(read, answer, _MOST_ANSWER), daemon=True),
        threading.Thread(target=_drain, args=(out, printed, _MOST_OUTPUT), daemon=True),
    ]
    for reader in readers:
        reader.start()
    while process.poll() is None and time.monotonic() - start < timeout and not answer.endswith(b"\n"):
        readers[0].join(0.02)
    late = process.poll() is None and not answer.endswith(b"\n")
    readers[0].join(0.2)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(0.0 if late else 1.0)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    readers[1].join(0.5)  # a process that left the session may hold the pipe longer
    code = process.returncode
    how = "timeout" if late else f"signal {-code}" if code < 0 else f"exit code {code}"
    output = bytes(printed).decode("utf-8", "backslashreplace")
    return Told(_parse(bytes(answer)), how, output, time.monotonic() - start)


def _drain(descriptor: int, into: bytearray, most: int) -> None:
    """Read to the end, keeping the last ``most`` bytes, and close."""
    try:
        while chunk := os.read(descriptor, 1 << 16):
            into += chunk
            del into[:-most]
    finally:
        os.close(descriptor)


def _parse(answer: bytes) -> dict[str, Any] | None:
    try:
        told = json.loads(answer.decode().strip().splitlines()[-1])
    except (ValueError, IndexError):
        return None
    return told if isinstance(told, dict) and "task" in told else None
