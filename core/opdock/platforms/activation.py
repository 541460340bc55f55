"""Making the chosen class the platform: load, check, instantiate, run its hooks, or take everything back."""

from __future__ import annotations

import logging
import pkgutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opdock import journal
from opdock.discovery import loading, metadata
from opdock.errors import OpdockError, PlatformFailedError
from opdock.platforms import hooks, order
from opdock.platforms.hook_check import check_platform_class
from opdock.platforms.interface import Platform
from opdock.platforms.selection import CPU_CLASS, Selection

if TYPE_CHECKING:
    import pluggy

logger = logging.getLogger("opdock")


@dataclass(frozen=True)
class Chosen:
    """The winner: its class path, and its candidate unless it is built in."""

    selection: Selection
    candidate: metadata.Candidate | None

    @property
    def owner(self) -> journal.Owner | None:
        """Who registers what the platform's hooks register."""
        return hooks.owner_of(self.candidate) if self.candidate else None

    def failed(self, what: str, why: list[str], cause: BaseException | None = None) -> PlatformFailedError:
        """Return the error for this platform, with its distribution and a remedy; its own comes first."""
        own = cause.remedy if isinstance(cause, OpdockError) else None
        error = PlatformFailedError(
            f"Platform {self.selection.winner!r} {what}",
            who=self.candidate.label if self.candidate else self.selection.class_path or "",
            why=why,
            remedy=(f"{own} Or " if own else "fix or upgrade the distribution, or ")
            + "leave it out: OPDOCK_PLATFORM=cpu, or VLLM_PLUGINS with the names of the plugins that may run.",
        )
        error.__cause__ = cause
        return error


def instantiate(chosen: Chosen) -> Platform:
    """Import the class, check it against the interface and make the one instance."""
    path = chosen.selection.class_path or CPU_CLASS
    with order.step("load platform class", path):
        if chosen.candidate is None:
            builtin: Platform = pkgutil.resolve_name(path)()
            return builtin
        try:
            cls = loading.resolve_class(path, chosen.candidate)
        except (Exception, SystemExit) as err:
            cause = err.what if isinstance(err, OpdockError) else f"{type(err).__name__}: {err}"
            raise chosen.failed(f"failed: its class {path} cannot be loaded.", [cause], err) from err
        faults = check_platform_class(cls)
        fatal = [f.text for f in faults if f.fatal]
        if fatal:
            raise chosen.failed(f"failed: its class {path} does not fit this host.", fatal)
        for fault in faults:
            logger.warning("Platform %s: %s", chosen.selection.winner, fault.text)
        try:
            instance: Platform = cls()
        except (Exception, SystemExit) as err:
            raise chosen.failed(f"failed: {path}() raised {type(err).__name__}: {err}", [], err) from err
        return instance


def run_hooks(
    chosen: Chosen, platform: Platform, plugins: list[metadata.Candidate], version: str
) -> pluggy.PluginManager:
    """Run the kernel hooks of the platform and of every package in ``opdock.plugins``.

    Raises: PlatformFailedError when the platform's own hook raises; what was registered is undone.
    """
    try:
        with journal.transaction():
            manager = hooks.make_manager(platform, chosen.owner, plugins, version)
            hooks.run_phases(manager, chosen.owner)
            _check_device(platform)
            return manager
    except (Exception, SystemExit) as err:
        what = err.what if isinstance(err, OpdockError) else f"{type(err).__name__}: {err}"
        raise chosen.failed(
            f"failed while it was activated: {what}",
            [
                "What it registered is undone; libraries that it loaded and objects that it patched are not.",
                *(err.why if isinstance(err, OpdockError) else []),
            ],
            err,
        ) from err


def _check_device(platform: Platform) -> None:
    """Check the dispatch key once the extension is loaded; the CPU needs no check and no torch yet."""
    if platform.device_type in ("", "cpu") and platform.dispatch_key == "CPU":
        return
    from opdock.registry.library import check_dispatch_key

    check_dispatch_key(platform.dispatch_key, platform.device_type or None)
