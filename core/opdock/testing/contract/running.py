"""``--run``: the entry module imported, asked and activated in child processes, in bounded time, with what it did.

A child is no sandbox: what a package does to files or services is done.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from opdock.discovery.entry_points import PLATFORM_GROUP
from opdock.testing.contract.checking import Result
from opdock.testing.contract.files import UnderPrefix
from opdock.testing.contract.findings import Finding, finding, in_order
from opdock.testing.contract.metadata import entries_of
from opdock.testing.contract.subject import Subject
from opdock.testing.process import Told, run_python

_MOST_UNPACKED = 4 << 30  # bytes of a wheel
# Not `-m`: that puts the current folder on the path, before the first import of the child.
_START = "import sys; sys.path[:] = sys.argv[5:]; from opdock.testing.contract import child; child.main(*sys.argv[1:5])"


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
    folders = [*([path] if path else []), *sys.path]
    told = run_python(_START, [task, value, path or ""], timeout=timeout, path=folders)
    return told if told.answer is None or "task" in told.answer else replace(told, answer=None)
