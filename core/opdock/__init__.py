"""opdock: one set of LLM inference code on any accelerator.

Importing it does nothing: every name below is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opdock.config import (
        CompilationConfig,
        CompilationMode,
        IrOpPriorityConfig,
        KernelConfig,
        OpdockConfig,
    )
    from opdock.context import get_current_config
    from opdock.discovery.hookspecs import hookimpl
    from opdock.discovery.selecting import decline, platform_plugin
    from opdock.errors import OpdockError
    from opdock.platforms import current_platform, set_current_config
    from opdock.platforms.enums import CpuArchEnum, DeviceCapability, PlatformEnum
    from opdock.platforms.interface import Platform
    from opdock.registry import CustomOp, PluggableLayer, direct_register_custom_op

__version__ = "0.1.0"

_HOMES = {
    "CompilationConfig": "config",
    "CompilationMode": "config",
    "CpuArchEnum": "platforms.enums",
    "CustomOp": "registry",
    "DeviceCapability": "platforms.enums",
    "IrOpPriorityConfig": "config",
    "KernelConfig": "config",
    "OpdockConfig": "config",
    "OpdockError": "errors",
    "Platform": "platforms.interface",
    "PlatformEnum": "platforms.enums",
    "PluggableLayer": "registry",
    "current_platform": "platforms",
    "decline": "discovery.selecting",
    "direct_register_custom_op": "registry",
    "get_current_config": "context",
    "hookimpl": "discovery.hookspecs",
    "platform_plugin": "discovery.selecting",
    "set_current_config": "platforms",
}

__all__ = [
    "CompilationConfig",
    "CompilationMode",
    "CpuArchEnum",
    "CustomOp",
    "DeviceCapability",
    "IrOpPriorityConfig",
    "KernelConfig",
    "OpdockConfig",
    "OpdockError",
    "Platform",
    "PlatformEnum",
    "PluggableLayer",
    "current_platform",
    "decline",
    "direct_register_custom_op",
    "get_current_config",
    "hookimpl",
    "platform_plugin",
    "set_current_config",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"opdock.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'opdock' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
