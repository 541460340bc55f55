"""The IR: ops with one native definition and many providers.

Importing this package imports nothing, not even torch: each name below loads when it is first used, and with it
the ops that the host ships.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opdock.ir import native, ops
    from opdock.ir.choice import Choice, Verdict
    from opdock.ir.counter import counting
    from opdock.ir.impl import IrOpImpl
    from opdock.ir.op import IrOp
    from opdock.ir.registering import register_op, registry

_HOMES = {
    "Choice": "choice",
    "IrOp": "op",
    "IrOpImpl": "impl",
    "Verdict": "choice",
    "counting": "counter",
    "register_op": "registering",
    "registry": "registering",
}

__all__ = ["Choice", "IrOp", "IrOpImpl", "Verdict", "counting", "native", "ops", "register_op", "registry"]


def __getattr__(name: str) -> Any:
    if name in ("native", "ops"):
        return import_module(f"opdock.ir.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'opdock.ir' has no attribute {name!r}")
    import_module("opdock.ir.ops")  # so that the registry is never seen without the host's own ops
    value = globals()[name] = getattr(import_module(f"opdock.ir.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return list(__all__)
