"""Optional packages: imported where they are used, with an error that says what to install."""

from __future__ import annotations

import importlib
from types import ModuleType

from opdock.errors import UnsupportedError


def need(module: str, purpose: str) -> ModuleType:
    """Import ``module``.

    Args:
        module: its import name.
        purpose: what it is needed for, to complete "... needs the package ...".

    Raises: UnsupportedError if it is not installed, or installed and broken; the two are told apart.
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as err:
        if err.name is None or err.name.partition(".")[0] != package:
            raise _broken(package, purpose, err) from err
        raise UnsupportedError(
            f"{purpose} needs the package {package!r}, which is not installed.",
            remedy="pip install 'opdock[models]'",
        ) from err
    except ImportError as err:
        raise _broken(package, purpose, err) from err


def _broken(package: str, purpose: str, err: ImportError) -> UnsupportedError:
    return UnsupportedError(
        f"{purpose} needs the package {package!r}, which is installed but cannot be imported.",
        why=f"{type(err).__name__}: {err}",
        remedy=f"pip install --force-reinstall {package}",
    )
