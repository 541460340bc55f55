"""Priorities for a context: a thread, an asyncio task, and what they call."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from opdock.ir.plan import Plan

lock = threading.RLock()
"""Held while priorities change, and over a fork, so that no child gets it held or a change half done; calls take no
lock."""
os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


class Scopes:
    """The plans of one op that are scoped somewhere.

    An entry counts until nothing refers to it: an asyncio task that was started inside a ``with`` block keeps the
    block's context when the block has ended.

    Args:
        name: of the op.
        on_change: called when the first entry comes or the last one goes.
    """

    def __init__(self, name: str, on_change: Callable[[], None]) -> None:
        """Start without any."""
        self.variable: ContextVar[Plan] = ContextVar(f"opdock.ir.{name}")
        self.count, self._on_change = 0, on_change
        scopes = self

        class OpPlan(Plan):
            scoped = property(self.variable.get)

        class ScopedPlan(OpPlan):
            def __del__(self) -> None:
                scopes._changed(-1)

        self.make_plan: type[Plan] = OpPlan
        self._make_entry: type[Plan] = ScopedPlan

    def _changed(self, by: int) -> None:
        with lock:
            was, self.count = bool(self.count), self.count + by
            if was != bool(self.count):
                self._on_change()

    def current(self, default: Plan) -> Plan:
        """Return the plan of this context."""
        return self.variable.get(default)

    @contextlib.contextmanager
    def enter(self, plan: Plan) -> Iterator[None]:
        """Make ``plan`` the one of this context."""
        entry: Any = self._make_entry(plan.key, plan.impls, plan.call, plan.inplace)
        with lock:
            self._changed(+1)
            token = self.variable.set(entry)
        del entry
        try:
            yield
        finally:
            self.variable.reset(token)
