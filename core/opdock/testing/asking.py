"""Asking a package in a fresh interpreter, and noting all that it does besides answering."""

from __future__ import annotations

import builtins
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from opdock.testing.settings import Settings, Target

# Not `-m`: that puts the current folder on the path, before the first import of the child.
START = "import sys; sys.path[:] = sys.argv[4:]; from opdock.testing import asking; asking.main(*sys.argv[1:4])"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM, signal.SIGUSR1)


def ask(settings: Settings, target: Target) -> dict[str, Any]:
    """Return what the package answered and did; ``status`` is answered, raised, timeout or exited."""
    from opdock.testing.process import run_python

    with tempfile.TemporaryDirectory(prefix="opdock-kit-") as empty:
        environ = {**settings.environ, "VLLM_PLUGINS": target.candidate.name}
        arguments = [target.candidate.name, target.distribution]
        told = run_python(START, arguments, timeout=settings.timeout, environ=environ, folder=empty)
    if told.answer is not None:
        return told.answer
    if told.how == "timeout":
        return {"status": "timeout", "error": f"no answer within {settings.timeout:g} s", "trace": told.output}
    return {"status": "exited", "error": f"the process ended with {told.how}", "trace": told.output}


def _state() -> dict[str, Any]:
    """Return what a process has that a probe must leave alone."""
    return {
        "environment variables": dict(os.environ),
        "the current folder": os.getcwd(),
        "sys.path": list(sys.path),
        "sys.meta_path": [type(f).__name__ if not isinstance(f, type) else f.__name__ for f in sys.meta_path],
        "signal handlers": {s.name: repr(signal.getsignal(s)) for s in _SIGNALS},
        "sys.excepthook": repr(sys.excepthook),
        "logging's root logger": [logging.root.level, sorted(map(repr, logging.root.handlers))],
        "builtins": {name: id(value) for name, value in vars(builtins).items() if name != "_"},
        "threads": sorted(t.name for t in threading.enumerate()),
        "files in the current folder": sorted(os.listdir()),
    }


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name, was in before.items():
        now = after[name]
        if isinstance(was, dict):
            keys = sorted(k for k in {*was, *now} if was.get(k) != now.get(k))
            if keys:
                found[name] = ", ".join(keys)
        elif was != now:
            found[name] = f"{now}"[-200:]
    return found


def _children() -> list[str]:
    """Return the processes that this one started and that are still there (Linux)."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return file.read().split()
    except OSError:
        return []


def initialised_drivers() -> list[str]:
    """Return the device modules of torch that hold a context, where torch is imported at all."""
    torch = sys.modules.get("torch")
    found = []
    for name in dir(torch) if torch is not None else ():
        module = vars(torch).get(name)
        asked: Callable[[], object] | None = getattr(module, "is_initialized", None)
        if type(module) is type(sys) and name not in ("distributed", "cpu") and callable(asked):
            try:
                found += [name] if asked() else []
            except Exception:  # noqa: BLE001, S112 - a module that cannot say it holds none
                continue
    return found


def _answer(load: Callable[[], object]) -> tuple[object, str]:
    from opdock.discovery import selecting

    with selecting.asking() as said:
        register = load()
        path = register() if callable(register) else register
    return path, said.reason


def _forked(load: Callable[[], object]) -> str:
    """Return what a forked child answers, as text."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            told = repr(_answer(load)[0])
        except BaseException as err:  # noqa: BLE001 - whatever it raises is the answer
            told = f"{type(err).__name__}: {err}"
        os.write(write, told.encode()[:2000])
        os._exit(0)
    os.close(write)
    chunks = []
    while chunk := os.read(read, 4096):
        chunks.append(chunk)
    os.close(read)
    os.waitpid(pid, 0)
    return b"".join(chunks).decode("utf-8", "replace")


def _facts(name: str, distribution: str) -> dict[str, Any]:
    from opdock.discovery import loading, metadata

    candidate = next(c for c in metadata.scan().candidates if (c.name, c.dist.name) == (name, distribution))
    missing = loading.locate(candidate)
    if missing:
        return {"status": "raised", "error": missing, "trace": ""}
    before, modules, start = _state(), set(sys.modules), time.perf_counter()
    printed_before = _printed()
    try:
        loaded = loading.load(candidate)
        imported = time.perf_counter() - start
        path, reason = _answer(lambda: loaded) if candidate.group == metadata.PLATFORM_GROUP else (None, "")
        after, drivers, children = _state(), initialised_drivers(), _children()
        facts: dict[str, Any] = {
            "status": "answered",
            "answer": path if path is None or isinstance(path, str) else repr(path),
            "reason": reason,
            "class_path": getattr(loaded, "class_path", None) or (path if isinstance(path, str) else None),
            "seconds": time.perf_counter() - start,
            "import_seconds": imported,
            "modules": sorted(set(sys.modules) - modules),
            "changes": _changes(before, after),
            "drivers": drivers,
            "children": children,
            "printed": _printed() - printed_before,
        }
        if candidate.group == metadata.PLATFORM_GROUP:
            facts["again"] = repr(_answer(lambda: loaded)[0])
            facts["outside"] = repr(loaded() if callable(loaded) else loaded)
            facts["forked"] = _forked(lambda: loaded)
    except BaseException as err:  # noqa: BLE001 - whatever it raises is the answer
        what = getattr(err, "what", None) or f"{type(err).__name__}: {err}"
        return {"status": "raised", "error": what, "trace": "".join(traceback.format_exception(err))[-3000:]}
    return facts


def _printed() -> int:
    """Return how many bytes went to stdout and stderr, which are a file here, or two."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    files = {(stat.st_dev, stat.st_ino): stat.st_size for stat in map(os.fstat, (1, 2))}
    return sum(files.values())


def main(descriptor: str, name: str, distribution: str) -> None:
    """Ask, write the facts to the pipe and end at once, whatever the package left running."""
    told = (json.dumps(_facts(name, distribution), default=repr) + "\n").encode()
    while told:
        told = told[os.write(int(descriptor), told) :]
    os._exit(0)
