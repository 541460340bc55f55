"""The providers of one op: a table whose every change can be taken back."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any

from opdock import context, journal
from opdock.errors import DuplicateError, OrderError
from opdock.ir.signature import site_of, unwrap

if TYPE_CHECKING:
    from opdock.ir.impl import IrOpImpl


def is_reload(old: Any, new: Any) -> bool:
    """Return whether ``new`` is ``old`` again: of a hook that ran twice, or of a module that was loaded again.

    A reloaded module may have been edited. Two functions of one name in one run of a module are not a reload, nor
    are two closures of one factory with different values.
    """
    if journal.same_definition(old, new):
        return True
    old, new = unwrap(old), unwrap(new)
    if not (isinstance(old, FunctionType) and isinstance(new, FunctionType)) or "<locals>" in new.__qualname__:
        return False
    if (old.__qualname__, old.__code__.co_filename) != (new.__qualname__, new.__code__.co_filename):
        return False
    reloading = new.__module__ in getattr(importlib, "_RELOADING", {})
    return reloading or old.__globals__ is not new.__globals__


class Providers:
    """Names to implementations, in order of registration.

    Args:
        op: name of the op.
        on_change: called after every change, with the table as it is then.
    """

    def __init__(self, op: str, on_change: Callable[[], None]) -> None:
        """Start empty."""
        self._op, self._on_change = op, on_change
        self._impls: dict[str, IrOpImpl] = {}
        self._generations: dict[str, int] = {}
        self._entries: list[journal.Registration] = []
        self.view: Mapping[str, IrOpImpl] = MappingProxyType(self._impls)

    def already(self, provider: str, fn: Any) -> IrOpImpl | None:
        """Return the implementation if ``fn`` is it, None if the name is free or ``fn`` is it anew.

        Raises: DuplicateError, showing both places, if another function has the name.
        """
        present = self._impls.get(provider)
        if present is None or present.impl_fn is fn:
            return present
        if not is_reload(present.impl_fn, fn):
            owner = journal.current_owner()
            raise DuplicateError(
                f"Implementation for provider {provider} already registered.",
                who=f"op {self._op!r}",
                why=[
                    f"registered at  {present.where()}",
                    f"again at       {site_of(fn)}" + (f"  {owner}" if owner else ""),
                ],
                remedy="register one of the two under another provider name, or uninstall one of the distributions.",
            )
        return None

    def next_generation(self, provider: str) -> int:
        """Return how many implementations of this name there have been."""
        return self._generations.get(provider, 0)

    def put(self, impl: IrOpImpl) -> None:
        """Add the implementation, or replace the one of its name; the first, native, comes and goes with the op."""
        previous = self._impls.get(impl.provider)
        is_first = not self._impls
        self._impls[impl.provider] = impl
        self._generations[impl.provider] = impl.generation + 1
        if not is_first:
            name = f"{self._op}.{impl.provider}"
            self._entries.append(journal.record("IR provider", name, lambda: self._undo(impl, previous)))
        self._on_change()

    def close(self) -> None:
        """Take every registration out of the journal: the op is gone."""
        self._on_change = lambda: None
        while self._entries:
            self._entries.pop().undo()

    def _undo(self, impl: IrOpImpl, previous: IrOpImpl | None) -> None:
        if self._impls.get(impl.provider) is not impl:
            return  # replaced since: theirs stays
        if previous is None:
            del self._impls[impl.provider]
        else:
            self._impls[impl.provider] = previous
        self._on_change()


def refuse_before_kernels(op: str, provider: str) -> None:
    """Raise OrderError when a plugin's provider module is imported before its kernels are loaded."""
    if journal.current_owner() is not None or context.kernels_loaded():
        return
    site = journal.Site.here()
    if site.module.partition(".")[0] in _plugin_packages():
        raise OrderError(
            f"Provider {provider!r} of op {op!r} is registered before the kernels are loaded.",
            who=f"module {site.module}  {site}",
            why="Its module was imported directly; import_kernels has not run, so what it calls may not exist yet.",
            remedy="import the module in import_ir_kernels only, and use opdock.current_platform to activate it.",
        )


@functools.cache
def _plugin_packages() -> frozenset[str]:
    from opdock.discovery import metadata

    return frozenset(
        c.value.partition(":")[0].partition(".")[0]
        for c in metadata.scan().candidates
        if c.dist.requires_opdock is not None and c.dist.name.lower() != "opdock"
    )
