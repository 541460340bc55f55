"""The IR: ops with one native definition and many providers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from opdock.errors import suggest
from opdock.ir.choice import Choice, Verdict
from opdock.ir.counter import counting
from opdock.ir.impl import IrOpImpl
from opdock.ir.op import IrOp
from opdock.ir.register import register_op

__all__ = [
    "Choice",
    "IrOp",
    "IrOpImpl",
    "Verdict",
    "counting",
    "native",
    "ops",
    "register_op",
    "registry",
]

registry: Mapping[str, IrOp] = IrOp.registry


class Namespace:
    """IR ops by attribute: the public functions, or the native definitions."""

    def __init__(self, label: str, get: Callable[[IrOp], Any]) -> None:
        """Look ops up with ``get``."""
        self._label, self._get = label, get

    def __getattr__(self, name: str) -> Any:
        """Return the op's function and keep it: a later look-up costs what an attribute costs."""
        if name.startswith("__") or name not in registry:
            raise AttributeError(f"opdock.ir.{self._label} has no op {name!r}. {suggest(name, registry)}")
        return self._get(registry[name])

    def __dir__(self) -> list[str]:
        return list(registry)


def _native_of(op: IrOp) -> Any:
    return op.native_fn


native = Namespace("native", _native_of)
"""The native definitions, never dispatched; ``.maybe_inplace`` is the definition itself."""

from opdock.ir import ops  # noqa: E402 - registers the ops, through the names above
