"""What is in force in this process and context: the configuration, and the platform behind it.

Low in the import order on purpose: layers and ops ask here and need not import ``opdock.platforms``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar, Token
from importlib import import_module
from typing import TYPE_CHECKING

from opdock.errors import OrderError

if TYPE_CHECKING:
    from opdock.config import OpdockConfig
    from opdock.platforms.interface import Platform

_config: ContextVar[OpdockConfig | None] = ContextVar("opdock.config", default=None)

_RESOLVER = "opdock.platforms.current"  # by name: this module lies below the platforms


def get_current_config() -> OpdockConfig:
    """Return the configuration that layers are being built under.

    Raises: OrderError outside ``opdock.set_current_config()``.
    """
    config = _config.get()
    if config is None:
        raise OrderError(
            "Current opdock config is not set.",
            why="A layer was built, or get_current_config() called, at module import, inside a forward, or "
            "before the configuration: the method that a layer binds depends on it.",
            remedy="build the model inside `with opdock.set_current_config(config):`.",
        )
    return config


def get_current_config_or_none() -> OpdockConfig | None:
    """Return the configuration in force, or None outside ``opdock.set_current_config()``."""
    return _config.get()


def enter_config(config: OpdockConfig) -> Token[OpdockConfig | None]:
    """Make ``config`` the one in force; for ``opdock.set_current_config`` alone."""
    return _config.set(config)


def leave_config(token: Token[OpdockConfig | None]) -> None:
    """Undo ``enter_config``."""
    _config.reset(token)


def platform() -> Platform:
    """Return the platform of the configuration in force, or else of the process, resolving it."""
    config = _config.get()
    if config is not None and config.platform is not None:
        return config.platform
    found: Platform = import_module(_RESOLVER).resolve()
    return found


_fusions: list[str] = []


def install_fusions(switches: Sequence[str]) -> None:
    """Make these the switches of fusions for what is compiled from now on."""
    _fusions[:] = switches


def installed_fusions() -> list[str]:
    """Return the switches of the fusions of compiled code; empty means all."""
    return list(_fusions)


_phases_done: set[str] = set()


def mark_kernels_loaded(*, loaded: bool = True) -> None:
    """Record that ``import_kernels`` has run; for the activation of the platform alone."""
    _phases_done.clear()
    if loaded:
        _phases_done.add("import_kernels")


def kernels_loaded() -> bool:
    """Return whether ``import_kernels`` of the active platform has run in this process."""
    return bool(_phases_done)
