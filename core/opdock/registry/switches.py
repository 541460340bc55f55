"""Which class is built for an op class, and which method it binds: pure functions over the configuration."""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opdock.config import CompilationConfig, check_switches
from opdock.errors import ConfigError
from opdock.registry import tables

if TYPE_CHECKING:
    from opdock.platforms.interface import Platform

logger = logging.getLogger("opdock")

# PlatformEnum member -> the method that a CustomOp binds there, and where its default body leads
METHODS = {
    "CUDA": ("forward_cuda", "forward_native"),
    "ROCM": ("forward_hip", "forward_cuda", "forward_native"),
    "CPU": ("forward_cpu", "forward_native"),
    "TPU": ("forward_tpu", "forward_native"),
    "XPU": ("forward_xpu", "forward_native"),
    "OOT": ("forward_oot", "forward_native"),
    "UNSPECIFIED": ("forward_native",),
}


@dataclass(frozen=True)
class ClassChoice:
    """What is built for an op class under one configuration, and why.

    Args:
        op: registered op name, or None for a class that is not registered.
        in_tree: the class that model code asks for.
        chosen: the class that is built.
        method: the method that a CustomOp binds; None for a PluggableLayer.
        defined_in: the class whose body runs as ``method``, following the default bodies.
        native_ir: whether the IR ops inside run native because of an explicit ``-op``.
        reason: why this class and method.
    """

    op: str | None
    in_tree: type
    chosen: type
    method: str | None
    defined_in: type | None
    native_ir: bool
    reason: str


def default_on(config: CompilationConfig) -> bool:
    """Return whether the base mode is ``all``; ConfigError unless there is exactly one base mode."""
    if sum(op in ("all", "none") for op in config.custom_ops) != 1:
        raise ConfigError(
            "custom_ops must contain exactly one base mode: 'all' or 'none'",
            why=f"custom_ops={list(config.custom_ops)}",
            remedy="build layers inside opdock.set_current_config(), which fills in the base mode.",
        )
    return "all" in config.custom_ops


def is_switched_off(name: str | None, config: CompilationConfig) -> bool:
    """Return whether an explicit ``-op`` takes the vendor out of this op."""
    return name is not None and f"-{name}" in config.custom_ops


def is_enabled(cls: type, config: CompilationConfig) -> bool:
    """Return whether instances of the CustomOp ``cls`` bind their platform's method."""
    check_switches(config.custom_ops)
    name = getattr(cls, "name", None)
    if name is None:
        _warn_unregistered(cls)
        return default_on(config)
    on = default_on(config) or f"+{name}" in config.custom_ops or tables.is_replacement(cls)
    return on and not is_switched_off(name, config)


_warned: set[type] = set()


def _warn_unregistered(cls: type) -> None:
    if cls not in _warned:
        _warned.add(cls)
        logger.warning(
            "Custom op %s was not registered, which means it won't appear in the op registry. "
            "It will be enabled/disabled based on the global settings.",
            cls.__name__,
        )


def class_to_build(cls: type, config: CompilationConfig) -> type:
    """Return the replacement of ``cls`` unless there is none or ``-op`` takes it out."""
    replacement = tables.replacement_of(cls)
    if replacement is None or is_switched_off(getattr(cls, "name", None), config):
        return cls
    return replacement


def method_of(platform: Platform) -> str:
    """Return the name of the method that a CustomOp binds on ``platform``."""
    return METHODS[platform._enum.name][0]


def definer(cls: type, method: str, platform: Platform) -> tuple[str, type | None]:
    """Return the method whose body finally runs for ``method``, and the class that defines it."""
    chain = METHODS[platform._enum.name] if method != "forward_native" else (method,)
    for name in chain:
        owner = next((c for c in cls.__mro__ if name in vars(c)), None)
        if owner is not None and not getattr(vars(owner)[name], "_default_body", False):
            return name, owner
    return chain[-1], None


def choose_class(cls: type, config: CompilationConfig, platform: Platform, *, force: bool = False) -> ClassChoice:
    """Return what is built when model code asks for ``cls``, which method it binds, and why.

    Args:
        cls: an op class, in-tree or a replacement.
        config: with its base mode filled in.
        platform: of the process.
        force: the layer asked for ``enforce_enable``.
    """
    chosen = class_to_build(cls, config)
    name = getattr(cls, "name", None)
    off = is_switched_off(name, config)
    replaced = chosen is not cls
    why = [f"{chosen.__module__} replaces it" if replaced else "the in-tree class"]
    if off and tables.replacement_of(cls):
        why = [f"-{name} takes {tables.maybe_get_oot_by_class(cls).__name__} out"]
    if not hasattr(cls, "dispatch_forward"):
        return ClassChoice(name, cls, chosen, None, None, off, "; ".join(why))
    if force or is_enabled(chosen, config):
        method = method_of(platform)
        why.append(_why_on(chosen, config, force=force))
    else:
        method = "forward_native"
        why.append(f"-{name}" if off else "base mode 'none'")
    runs, owner = definer(chosen, method, platform)
    if runs != method:
        why.append(f"{method} is not defined: {runs}")
    return ClassChoice(name, cls, chosen, method, owner, off, "; ".join(why))


def _why_on(cls: type, config: CompilationConfig, *, force: bool) -> str:
    if force:
        return "enforce_enable"
    if f"+{getattr(cls, 'name', None)}" in config.custom_ops:
        return f"+{cls.name}"  # type: ignore[attr-defined]
    return "base mode 'all'" if "all" in config.custom_ops else "a replacement is on unless -op"


def faults_of_replacements(platform: Platform) -> list[str]:
    """Return a line for every replacement that does nothing on ``platform``."""
    lines = []
    for target, cls, entry in tables.replacements():
        own = [c for c in cls.__mro__ if c not in target.__mro__]
        defined = {k for c in own for k, v in vars(c).items() if inspect.isfunction(v)}
        forwards = sorted(k for k in defined if k.startswith("forward_"))
        if not hasattr(cls, "dispatch_forward"):
            if forwards and "forward" not in defined:
                lines.append(
                    f"{cls.__name__} defines {forwards[0]}, but {target.__name__} is a PluggableLayer and has no "
                    f"dispatch: it is never called. Define forward. ({entry.where()})"
                )
        elif forwards and not defined & set(METHODS[platform._enum.name]):
            lines.append(
                f"{cls.__name__} defines {', '.join(forwards)}, but {platform.device_name} binds "
                f"{method_of(platform)}: its methods are never called. ({entry.where()})"
            )
    return lines
