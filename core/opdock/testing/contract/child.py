"""The body of the children of ``--run``: import what an entry point names, ask it, activate it, and tell."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import threading
import time
import traceback
from collections import Counter
from typing import Any, NoReturn

_TRACE = 3000  # characters kept of a traceback


def main(descriptor: str, task: str, value: str, _path: str) -> NoReturn:
    """Do one task, write the answer to the pipe and end at once, whatever the plugin left running."""
    pid = os.getpid()
    told = _do(task, value)
    if os.getpid() != pid:  # the plugin forked and its child came back here
        os._exit(0)
    view = memoryview((json.dumps({"task": task, **told}, default=repr) + "\n").encode())
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    with contextlib.suppress(OSError):
        while view:
            view = view[os.write(int(descriptor), view) :]
    os._exit(0)


def _do(task: str, value: str) -> dict[str, Any]:
    if task == "activate":
        import torch  # noqa: F401 - what a plugin's own import of it would cost is told by the other task
    else:
        import opdock.discovery.selecting  # noqa: F401 - the same: it is the host's
    modules, environ, threads = set(sys.modules), dict(os.environ), set(threading.enumerate())
    start = time.perf_counter()
    told: dict[str, Any] = {}
    try:
        told = _asked(value)
        if task == "activate" and told["class_path"]:
            _activate(told["class_path"])
    except BaseException as err:  # noqa: BLE001 - whatever it raises is the answer
        told["error"] = f"{type(err).__name__}: {err}".splitlines()[0]
        told["trace"] = "".join(traceback.format_exception(err))[-_TRACE:]
    new = set(sys.modules) - modules
    return {
        **told,
        "seconds": time.perf_counter() - start,
        "modules": len(new),
        "heaviest": dict(Counter(name.partition(".")[0] for name in new).most_common(5)),
        "torch": "torch" in new,
        "device": _device(),
        "environ": sorted(k for k in {*environ, *os.environ} if environ.get(k) != os.environ.get(k)),
        "threads": [t.name for t in threading.enumerate() if t not in threads],
    }


def _asked(value: str) -> dict[str, Any]:
    from opdock.discovery.selecting import asking

    module, _, attribute = (p.strip() for p in value.partition(":"))
    target: Any = importlib.import_module(module)
    for part in filter(None, attribute.split(".")):
        target = getattr(target, part)
    with asking() as answer:
        path = target()
    if path is not None and not isinstance(path, str):
        raise TypeError(f"it returned {path!r}, expected a class path or None")
    return {"class_path": path, "reason": answer.reason}


def _activate(path: str) -> None:
    """Do what the host does with the chosen class, in its order."""
    from opdock import OpdockConfig, context
    from opdock.discovery.loading import split
    from opdock.platforms import hook_check, override

    module, attribute = split(path)
    cls: Any = importlib.import_module(module)
    for part in attribute.split("."):
        cls = getattr(cls, part)
    fatal = [f.text for f in hook_check.check_platform_class(cls) if f.fatal]
    if fatal:
        raise TypeError("; ".join(fatal))
    with override(cls()) as platform:
        platform.import_kernels()
        context.mark_kernels_loaded()
        platform.import_ir_kernels()
        platform.register_oot()
        platform.get_default_ir_op_priority(OpdockConfig())


def _device() -> str:
    """Return the name of a driver of torch that is initialised, "" if none is."""
    torch = sys.modules.get("torch")
    for name in ("cuda", "xpu", "npu", "musa", "hpu", "mtia"):
        is_initialised = getattr(getattr(torch, name, None), "is_initialized", None)
        with contextlib.suppress(Exception):
            if is_initialised is not None and is_initialised():
                return name
    return ""
