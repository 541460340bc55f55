"""The platform of this process, and the interface that a backend implements.

``from opdock.platforms import current_platform`` resolves the platform; importing anything else here does not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opdock.platforms.configure import set_current_config
    from opdock.platforms.current import override, reset
    from opdock.platforms.enums import CpuArchEnum, DeviceCapability, PlatformEnum
    from opdock.platforms.interface import Platform, UnspecifiedPlatform

    current_platform: Platform
    _init_trace: str

__all__ = [
    "CpuArchEnum",
    "DeviceCapability",
    "Platform",
    "PlatformEnum",
    "UnspecifiedPlatform",
    "builtin_platform_plugins",
    "current_platform",
    "override",
    "reset",
    "set_current_config",
]

builtin_platform_plugins = {"cpu": "opdock.platforms.cpu:cpu_platform_plugin"}
"""Platforms that the core carries."""

_HOMES = {
    "CpuArchEnum": "enums",
    "DeviceCapability": "enums",
    "Platform": "interface",
    "PlatformEnum": "enums",
    "UnspecifiedPlatform": "interface",
    "override": "current",
    "reset": "current",
    "set_current_config": "configure",
}


def __getattr__(name: str) -> Any:
    if name == "current_platform":
        return import_module("opdock.platforms.current").resolve()
    if name == "_init_trace":
        return import_module("opdock.platforms.current").init_trace()
    if name in _HOMES:
        return getattr(import_module(f"opdock.platforms.{_HOMES[name]}"), name)
    raise AttributeError(f"No attribute named '{name}' exists in opdock.platforms.")


def __dir__() -> list[str]:
    return sorted(__all__)
