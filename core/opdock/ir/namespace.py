"""``ir.ops`` and ``ir.native``: every registered op as an attribute of a module.

A module, because attribute access on one is what CPython and Dynamo handle best.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from opdock.errors import suggest

_MODULES = {"ops": "opdock.ir.ops", "native": "opdock.ir.native"}


def publish(name: str, public: Callable[..., Any], native: Callable[..., Any]) -> None:
    """Make an op an attribute of both namespaces, as far as they are loaded."""
    for which, value in (("ops", public), ("native", native)):
        module = sys.modules.get(_MODULES[which])
        if module is not None:
            setattr(module, name, value)


def withdraw(name: str) -> None:
    """Take an op out of both namespaces."""
    for path in _MODULES.values():
        module = sys.modules.get(path)
        if module is not None and name in vars(module):
            delattr(module, name)


def look_up(which: str, name: str) -> Any:
    """Return an op that was registered before its namespace was loaded.

    Raises: AttributeError with the nearest known names.
    """
    if not name.startswith("__"):
        import_module(_MODULES["ops"])  # registers the host's ops
        from opdock.ir.op import IrOp

        op = IrOp.registry.get(name)
        if op is not None:
            return op.fn if which == "ops" else op.native
        raise AttributeError(f"opdock.ir.{which} has no op {name!r}. {suggest(name, IrOp.registry)}")
    raise AttributeError(f"module 'opdock.ir.{which}' has no attribute {name!r}")
