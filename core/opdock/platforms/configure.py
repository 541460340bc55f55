"""Completing a configuration with the platform, and making it the one that layers are built under."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from opdock import context, ir
from opdock.config import NATIVE, CompilationMode, IrOpPriorityConfig, OpdockConfig, merge_priority
from opdock.errors import ConfigError, UnknownNameError, nearest, suggest
from opdock.platforms import current, hooks, order
from opdock.registry import op_registry, switches, tables

if TYPE_CHECKING:
    from opdock.platforms.interface import Platform

logger = logging.getLogger("opdock")


@contextlib.contextmanager
def set_current_config(config: OpdockConfig | None = None) -> Iterator[OpdockConfig]:
    """Make ``config`` the configuration that layers are built under.

    The first time, it resolves the platform, lets it change the configuration, fills in the rest, sets the
    process's default priorities of IR ops, and seals the configuration. These priorities stay when it is left, for
    the layers that were built; inside another configuration, those of the outer one come back.

    Args:
        config: None uses the defaults.

    Yields: the configuration.
    Raises: ConfigError or UnknownNameError for switches and priorities that cannot hold; on leaving, for a
        switch of an op that does not exist.
    """
    config = config or OpdockConfig()
    platform = current.resolve()  # also for a configuration that came from another process: its providers are here
    if config.platform is None:
        with order.step("prepare configuration"):
            prepare(config, platform)
    else:
        install_priorities(config)
    outer = context.get_current_config_or_none()
    token = context.enter_config(config)
    try:
        yield config
    finally:
        context.leave_config(token)
        if outer is not None and outer is not config:
            install_priorities(outer)
    check_switches_in_use(config)


def prepare(config: OpdockConfig, platform: Platform) -> None:
    """Fill in what depends on the platform, check the names, install the priorities and seal ``config``.

    A configuration that is refused is refused again: it stays without a platform.
    """
    try:
        _prepare(config, platform)
    except BaseException:
        config.platform = None
        raise


def _prepare(config: OpdockConfig, platform: Platform) -> None:
    cc = config.compilation_config
    platform.apply_config_platform_defaults(config)
    if cc.mode is None:
        cc.mode = CompilationMode.NONE
    if not cc.backend:
        cc.backend = platform.get_compile_backend()
        if cc.mode is CompilationMode.OPDOCK_COMPILE and cc.backend == "inductor":
            cc.backend = "opdock"  # Inductor behind the host's passes
    if cc.base_mode is None:
        cc.custom_ops = [*cc.custom_ops, "none" if cc.uses_inductor else "all"]
    config.platform = platform
    priorities = effective_priorities(config, platform)
    platform.check_and_update_config(config)
    refuse_misspelt_switches(config)
    # its own: the given one may be shared
    config.kernel_config = replace(config.kernel_config, ir_op_priority=IrOpPriorityConfig(priorities))
    install_priorities(config)
    for fault in [*switches.faults_of_replacements(platform), *_both_ways(priorities)]:
        logger.warning("%s", fault)
    config.seal()


def effective_priorities(config: OpdockConfig, platform: Platform) -> dict[str, list[str]]:
    """Return, for every IR op, the user's providers followed by the platform's.

    Raises: UnknownNameError for an op or provider of the user's that does not exist.
    """
    user, default = config.kernel_config.ir_op_priority, platform.get_default_ir_op_priority(config)
    for op in user:
        if op not in ir.registry:
            raise UnknownNameError(
                f"The priorities name IR op {op!r}, which does not exist.", remedy=suggest(op, ir.registry)
            )
    manager = current.hook_manager()
    given = hooks.ask_all(manager, "default_ir_op_priority", platform=platform, config=config) if manager else []
    extra = [IrOpPriorityConfig(each) for each in given]
    return {
        name: _priority_of(name, user, [p for each in extra for p in each[name]], default, platform)
        for name in ir.registry
    }


def _priority_of(
    name: str, user: IrOpPriorityConfig, extra: list[str], default: IrOpPriorityConfig, platform: Platform
) -> list[str]:
    known = ir.registry[name].impls
    for provider in user[name]:
        if provider.lstrip("-") not in known:
            raise UnknownNameError(
                f"IR op {name!r} has no provider {provider.lstrip('-')!r}.",
                remedy=suggest(provider.lstrip("-"), known),
            )
    theirs = [*extra, *(default[name] or [NATIVE])]
    for provider in (p for p in theirs if p not in known):
        logger.warning(
            "Platform %s lists provider %r of IR op %s, which is not registered.",
            platform.device_name,
            provider,
            name,
        )
    return merge_priority(user[name], [p for p in theirs if p in known]) or [NATIVE]


def _both_ways(priorities: dict[str, list[str]]) -> list[str]:
    """Return a line for each op that one distribution both replaces and provides, saying which runs."""
    lines = []
    for target, cls, entry in tables.replacements():
        op = ir.registry.get(getattr(target, "name", ""))
        for impl in op.impls.values() if op is not None and entry.owner is not None else ():
            if impl.owner and impl.owner.distribution == entry.owner.distribution:  # type: ignore[union-attr]
                first = priorities[impl.op.name][0] == impl.provider
                lines.append(
                    f"{impl.owner.distribution} both replaces {target.__name__} by {cls.__name__} and provides "
                    f"{impl.provider} for IR op {impl.op.name}: {cls.__name__} runs; the provider runs only where the "
                    f"op is called{'' if first else ', and is not first in its priority'}."
                )
    return lines


def install_priorities(config: OpdockConfig) -> None:
    """Make the priorities and fusions in ``config`` the process's defaults, and tell the observers."""
    context.install_fusions(config.compilation_config.fusions)
    manager = current.hook_manager()
    for name in config.kernel_config.ir_op_priority:
        ir.registry[name].set_default(config.kernel_config.ir_op_priority[name])
        if manager is not None:
            hooks.ask_all(manager, "provider_chosen", op=name, providers=tuple(ir.registry[name].get_priority()))


def refuse_misspelt_switches(config: OpdockConfig) -> None:
    """Raise for a switch that names no op class but is close to one; others may come with the model."""
    for directive in config.compilation_config.custom_ops:
        name = directive[1:]
        if directive[0] in "+-" and name not in op_registry and nearest(name, op_registry):
            raise _no_such_op(directive)


def check_switches_in_use(config: OpdockConfig) -> None:
    """Raise for a switch of an op that does not exist; log one of an op that no layer used."""
    cc = config.compilation_config
    used = {*cc.enabled_custom_ops, *cc.disabled_custom_ops}
    for directive in cc.custom_ops if used else ():
        name = directive[1:]
        if directive[0] not in "+-" or name in used:
            continue
        if name not in op_registry:
            raise _no_such_op(directive)
        verb = "enabling" if directive[0] == "+" else "disabling"
        logger.warning("Op '%s' not present in model, %s with '%s' has no effect", name, verb, directive)


def _no_such_op(directive: str) -> ConfigError:
    return ConfigError(
        f"custom_ops has {directive!r}, but no op class is called {directive[1:]!r}.",
        remedy=suggest(directive[1:], op_registry),
    )
