"""Counting which provider served each call; it costs nothing while nobody counts."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opdock.ir.op import IrOp

_lock = threading.Lock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_counters: list[Counter[tuple[str, str]]] = []


def active() -> bool:
    """Return whether anybody counts."""
    return bool(_counters)


@contextlib.contextmanager
def counting() -> Iterator[Counter[tuple[str, str]]]:
    """Count the eager calls of every IR op, in all threads, while the block runs.

    Calls inside compiled code do not count: there the op is gone. Nor do calls of ``ir.native``, which are no
    choice.

    Yields: a counter by (op name, provider); still readable after the block.
    """
    counter: Counter[tuple[str, str]] = Counter()
    with _lock:
        _counters.append(counter)
    _reinstall()
    try:
        yield counter
    finally:
        with _lock:
            _counters[:] = [c for c in _counters if c is not counter]
        _reinstall()


def _reinstall() -> None:
    from opdock.ir.op import IrOp

    for op in tuple(IrOp.registry.values()):
        op.install()


def counted_function(op: IrOp, kind: str) -> Callable[..., Any]:
    """Return what stands for an op's plan while somebody counts."""

    def counted(*args: Any) -> Any:
        impl = op.dispatch(*args)
        with _lock:
            for counter in _counters:
                counter[op.name, impl.provider] += 1
        return (impl.keeping_fn if kind == "call" else impl.impl_fn)(*args)

    return counted
