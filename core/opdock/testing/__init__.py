"""The conformance kit: what a platform or kernels package is checked with, before its users do.

``pytest --opdock-plugin=NAME`` runs it over an installed package; a package's own tests subclass ``Conformance``.
Importing this package imports neither torch nor pytest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opdock.testing.conformance import Conformance
    from opdock.testing.results import Report, Result
    from opdock.testing.session import run

_HOMES = {"Conformance": "conformance", "Report": "results", "Result": "results", "run": "session"}

__all__ = ["Conformance", "Report", "Result", "run"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'opdock.testing' has no attribute {name!r}")
    return getattr(import_module(f"opdock.testing.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
