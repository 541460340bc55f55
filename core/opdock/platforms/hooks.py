"""The hooks that many packages may implement: the active platform, through an adapter, and ``opdock.plugins``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pluggy

from opdock import context, journal
from opdock.discovery import hookspecs, loading, metadata
from opdock.platforms import order
from opdock.platforms.who_may_run import may_run

if TYPE_CHECKING:
    from opdock.platforms.interface import Platform

logger = logging.getLogger("opdock")

PHASES = ("import_kernels", "import_ir_kernels", "register_oot")
"""In this order, each for every implementer before the next: an extension is loaded before its providers."""


class PlatformAdapter:
    """Gives a platform's own methods to the hooks."""

    def __init__(self, platform: Platform) -> None:
        """Adapt ``platform``."""
        self.platform = platform

    @hookspecs.hookimpl
    def import_kernels(self) -> None:
        """See ``Platform.import_kernels``."""
        self.platform.import_kernels()

    @hookspecs.hookimpl
    def import_ir_kernels(self) -> None:
        """See ``Platform.import_ir_kernels``."""
        self.platform.import_ir_kernels()

    @hookspecs.hookimpl
    def register_oot(self) -> None:
        """See ``Platform.register_oot``."""
        self.platform.register_oot()

    @hookspecs.hookimpl
    def compile_passes(self) -> list[Any]:
        """See ``Platform.compile_passes``."""
        return self.platform.compile_passes()


def owner_of(candidate: metadata.Candidate) -> journal.Owner:
    """Return the candidate as an owner of registrations."""
    return journal.Owner(candidate.dist.name, candidate.dist.version, candidate.name)


def make_manager(
    platform: Platform,
    owner: journal.Owner | None,
    plugins: Iterable[metadata.Candidate],
    opdock_version: str,
) -> pluggy.PluginManager:
    """Return a manager that holds the platform and every package in ``opdock.plugins`` that may run.

    A package whose import or hooks are broken is left out with a warning: it is optional.
    """
    manager = pluggy.PluginManager("opdock")
    manager.add_hookspecs(hookspecs)
    manager.register(PlatformAdapter(platform), name="platform")
    for candidate in plugins:
        reason = may_run(candidate, opdock_version)
        if reason:
            logger.debug("Plugin %s does not run: %s", candidate.label, reason)
            continue
        _optional(candidate, lambda c=candidate: _add(manager, c))  # type: ignore[misc]
    manager.opdock_owner = owner  # type: ignore[attr-defined]
    return manager


def _add(manager: pluggy.PluginManager, candidate: metadata.Candidate) -> None:
    reason = loading.locate(candidate)
    if reason:
        raise ImportError(reason)
    name = f"{candidate.dist.name}:{candidate.name}"
    manager.register(loading.load(candidate), name=name)
    _owners[name] = owner_of(candidate)
    try:
        manager.check_pending()
    except pluggy.PluginValidationError:
        manager.unregister(name=name)  # left out means all of it
        raise


_owners: dict[str, journal.Owner] = {}


def _optional(candidate: metadata.Candidate, run: Callable[[], object]) -> bool:
    try:
        with journal.transaction(owner_of(candidate)):
            run()
    except (Exception, SystemExit):
        logger.warning("Plugin %s failed and is left out.", candidate.label, exc_info=True)
        return False
    return True


def run_phases(manager: pluggy.PluginManager, owner: journal.Owner | None) -> None:
    """Run the three kernel phases over all implementers, the platform first.

    What an optional package registered is rolled back if one of its hooks raises, and it is left out of the
    later phases; a raise of the platform's own hook propagates.
    """
    scopes: dict[str, list[journal.Registration]] = {}
    for phase in PHASES:
        caller = getattr(manager.hook, phase)
        implementations = sorted(caller.get_hookimpls(), key=lambda i: i.plugin_name != "platform")
        for impl in implementations:
            name = impl.plugin_name
            with order.step(phase, name):
                if name == "platform":
                    with journal.transaction(owner):
                        impl.function()
                else:
                    _run_optional(manager, impl, scopes.setdefault(name, []))
        if phase == "import_kernels":
            context.mark_kernels_loaded()


def _run_optional(manager: pluggy.PluginManager, impl: Any, scope: list[journal.Registration]) -> None:
    name = impl.plugin_name
    try:
        with journal.transaction(_owners.get(name)) as made:
            impl.function()
        scope += made
    except (Exception, SystemExit):
        journal.roll_back(scope)
        manager.unregister(name=name)
        logger.warning("Plugin %s failed and is left out; what it registered is undone.", name, exc_info=True)


def ask_all(manager: pluggy.PluginManager, hook: str, **given: Any) -> list[Any]:
    """Call an observer or a hook for defaults of every package, and return the answers that are not None.

    A package whose hook raises is reported, and the others are asked: it is optional.
    """
    answers = []
    for impl in reversed(getattr(manager.hook, hook).get_hookimpls()):
        try:
            with journal.transaction(_owners.get(impl.plugin_name)):
                answer = impl.function(*(given[name] for name in impl.argnames))
        except (Exception, SystemExit):
            logger.warning("Plugin %s failed in %s; the others go on.", impl.plugin_name, hook, exc_info=True)
            continue
        if answer is not None:
            answers.append(answer)
    return answers
