"""``torch.compile(model, backend="opdock")``: from calls of IR ops to the kernels that were chosen.

Importing this package imports nothing: each name below loads when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opdock.compile.backend import observing, opdock
    from opdock.compile.fusion import Fusion
    from opdock.compile.model import compile_model
    from opdock.compile.nodes import DonationError, LoweringError
    from opdock.compile.report import GraphReport, NodeChoice

_HOMES = {
    "DonationError": "nodes",
    "Fusion": "fusion",
    "GraphReport": "report",
    "LoweringError": "nodes",
    "NodeChoice": "report",
    "compile_model": "model",
    "observing": "backend",
    "opdock": "backend",
}

__all__ = [
    "DonationError",
    "Fusion",
    "GraphReport",
    "LoweringError",
    "NodeChoice",
    "compile_model",
    "observing",
    "opdock",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'opdock.compile' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"opdock.compile.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return list(__all__)
