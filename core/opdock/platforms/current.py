"""The platform of this process: resolved on first access, once, under a lock.

Resolution is scan, select, load, activate. While candidates are being asked, a second access from the same
thread is an error that names both modules; while the hooks run, it returns the platform that they belong to.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pkgutil
import sys
import threading
import traceback
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING

from opdock import context, env, journal
from opdock.discovery import loading, metadata, selecting
from opdock.errors import PlatformError, ReentryError
from opdock.platforms import activation, general, hints, hooks, order, selection

if TYPE_CHECKING:
    import pluggy

    from opdock.platforms.interface import Platform

logger = logging.getLogger("opdock")

SLOW_AFTER = 5.0
"""Seconds after which a message says which plugin is being waited for, and where it is."""


class _State:
    """Everything that resolution leaves behind; one instance in the process."""

    def __init__(self) -> None:
        self.platform: Platform | None = None  # set when everything is done: the fast path
        self.activating: Platform | None = None  # set while its hooks run
        self.selection: selection.Selection | None = None
        self.manager: pluggy.PluginManager | None = None
        self.init_trace = ""
        self.thread: int | None = None
        self.first_module = ""
        self.asking = ""
        self.pid = os.getpid()


_state = _State()
_lock = threading.RLock()
_override: ContextVar[Platform | None] = ContextVar("opdock.platform_override", default=None)


def resolve() -> Platform:
    """Return the platform of this process, deciding it on the first call.

    Raises: PlatformError of the kind that the selection table names; ReentryError when a plugin asks while
        it is itself being asked. A failure is not kept: the next call decides anew.
    """
    forced = _override.get()
    if forced is not None:
        return forced
    if _state.platform is not None and _state.pid == os.getpid():
        return _state.platform
    if _state.thread == threading.get_ident():
        if _state.activating is not None:
            return _state.activating
        raise _reentry()
    with _lock:
        if _state.platform is None:
            _decide()
        elif _state.pid != os.getpid():
            _state.pid = os.getpid()
            general.run_general_plugins(_scan().candidates_of(metadata.GENERAL_GROUP), _version())
        return _state.platform  # type: ignore[return-value]


def _decide() -> None:
    _state.thread, _state.first_module = threading.get_ident(), _accessing_module()
    _state.init_trace = "".join(traceback.format_stack())
    try:
        scan = _scan()
        candidates = scan.candidates_of(metadata.PLATFORM_GROUP)
        with order.step("select platform"):
            chosen = select(candidates, request_from_env())
        _state.selection = chosen
        for warning in chosen.warnings:
            logger.warning("%s", warning)
        for warning in selection.unknown_names(request_from_env(), [c.name for c in scan.candidates]):
            logger.warning("%s", warning)
        if chosen.error is not None:
            raise chosen.error
        winner = activation.Chosen(chosen, _candidate_of(chosen, candidates))
        with journal.transaction(winner.owner):  # also what the class's module registers when it is imported
            platform = activation.instantiate(winner)
            _state.activating = platform
            _activate(winner, platform, scan)
        _state.platform, _state.pid = platform, os.getpid()
        logger.info("Platform %s: %s", chosen.winner, chosen.reason)
        for hint in chosen.hints:
            logger.warning("%s", hint)
    finally:
        _state.thread = _state.activating = None


def _activate(winner: activation.Chosen, platform: Platform, scan: metadata.Scan) -> None:
    """Run every hook, or leave nothing of what ran behind, so that the next access starts anew."""
    try:
        with journal.transaction():
            plugins = scan.candidates_of(metadata.HOOK_GROUP)
            _state.manager = activation.run_hooks(winner, platform, plugins, _version())
            general.run_general_plugins(scan.candidates_of(metadata.GENERAL_GROUP), _version())
            hooks.ask_all(_state.manager, "platform_selected", platform=platform, selection=winner.selection)
    except BaseException:
        _state.manager = None
        context.mark_kernels_loaded(loaded=False)
        general.forget()
        raise


def request_from_env() -> selection.Request:
    """Return what the environment asks for, as it stands now."""
    return selection.Request(env.forced_platform(), env.target_device(), env.plugin_filter(), _version())


def select(candidates: list[metadata.Candidate], request: selection.Request) -> selection.Selection:
    """Ask the candidates that may run, in this process, and return the selection."""
    verdicts = selection.sift(candidates, request)
    outcomes = {i: _ask(candidates[i]) for i, v in enumerate(verdicts) if v.verdict == selection.PENDING}
    return with_hints(selection.decide(verdicts, outcomes, request, active_builtins()), candidates)


def active_builtins() -> dict[str, str]:
    """Return the class paths of the built-in platforms that are active, by name."""
    from opdock.platforms import builtin_platform_plugins

    found = {name: pkgutil.resolve_name(plugin)() for name, plugin in builtin_platform_plugins.items()}
    return {name: path for name, path in found.items() if path is not None}


def with_hints(chosen: selection.Selection, candidates: list[metadata.Candidate]) -> selection.Selection:
    """Add the hints for hardware whose package is missing, where the CPU was not asked for by name."""
    from dataclasses import replace

    if chosen.winner != "cpu" or chosen.reason.endswith("=cpu"):
        return chosen
    torch = metadata.installed_version("torch")
    return replace(chosen, hints=hints.hints((c.dist.name for c in candidates), torch=torch))


def _ask(candidate: metadata.Candidate) -> selection.Outcome:
    """Call one candidate's register(), once."""
    reason = loading.locate(candidate)
    if reason:
        return selection.Outcome(reason=reason, error=ImportError(reason))
    if candidate.dist.requires_opdock is None:
        return _ask_foreign(candidate)
    _state.asking = candidate.label
    timer = threading.Timer(SLOW_AFTER, _say_where, args=(threading.get_ident(), candidate.label))
    timer.daemon = True
    timer.start()
    try:
        with order.step("ask", candidate.label), journal.transaction(hooks.owner_of(candidate)) as made:
            register = loading.load(candidate)
            with selecting.asking() as answer:
                path = register() if callable(register) else register
            if path is None:
                journal.roll_back(made)
        return _outcome(candidate, path, answer.reason)
    except (Exception, SystemExit) as err:  # noqa: BLE001 - catching what a plugin raised is what this is for
        return selection.Outcome(error=err)
    finally:
        timer.cancel()
        _state.asking = ""


def _outcome(candidate: metadata.Candidate, path: object, reason: str) -> selection.Outcome:
    if path is None:
        return selection.Outcome(reason=reason)
    if isinstance(path, str) and path.strip():
        return selection.Outcome(class_path=path.strip())
    wrong = TypeError(
        f"{candidate.value} gave {path!r}, expected a class path such as 'package.module.Class', or None to decline"
    )
    return selection.Outcome(error=wrong)


def _ask_foreign(candidate: metadata.Candidate) -> selection.Outcome:
    """Examine a package written for another host in a child: its import may do anything."""
    from opdock.platforms.child import probe_in_child

    report = probe_in_child(candidate.name, timeout=env.probe_timeout(), distribution=candidate.dist.name)
    said = {
        "timeout": "did not answer in time",
        "activated": "its class is not a subclass of opdock's Platform",
    }
    reason = f"{candidate.dist.name} does not require opdock: written for another host. In a child process: "
    reason += said.get(report.status, report.status) + (f", {report.reason}" if report.reason else "")
    return selection.Outcome(
        reason=reason,
        error=PlatformError(
            reason,
            remedy=f"ask the authors of {candidate.dist.name} for a release that requires opdock.",
        ),
    )


def _candidate_of(chosen: selection.Selection, candidates: list[metadata.Candidate]) -> metadata.Candidate | None:
    active = [v for v in chosen.verdicts if v.verdict == "activated"]
    if not active:
        return None
    won = active[0]
    return next(c for c in candidates if (c.name, c.dist.name) == (won.name, won.distribution))


def _scan() -> metadata.Scan:
    with order.step("scan metadata"):
        return metadata.scan()


def _version() -> str:
    from opdock import __version__

    return __version__


def _accessing_module() -> str:
    return journal.Site.here().module


def _reentry() -> ReentryError:
    here = journal.Site.here()
    half = sorted(
        name
        for name, module in list(sys.modules.items())
        if getattr(getattr(module, "__spec__", None), "_initializing", False) and not name.startswith("opdock.")
    )
    return ReentryError(
        "current_platform is needed while it is being decided.",
        who=[
            f"first access: module {_state.first_module}",
            f"second access: module {here.module}  {here}",
            *([f"being asked: {_state.asking}"] if _state.asking else []),
        ],
        why=[
            f"partially initialized modules: {', '.join(half) or 'none'}",
            "stack of the first access:",
            _state.init_trace.rstrip(),
        ],
        remedy="in the plugin's module, import what needs current_platform inside a function, not at the top.",
    )


def _say_where(thread: int, label: str) -> None:
    frame = sys._current_frames().get(thread)
    where = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "?"
    logger.warning("Still waiting for platform plugin %s, now at %s", label, where)


def chosen_selection() -> selection.Selection | None:
    """Return the selection of this process; None before the first access."""
    return _state.selection


def hook_manager() -> pluggy.PluginManager | None:
    """Return the hooks of the active platform and of ``opdock.plugins``; None before the first access."""
    return _state.manager


def init_trace() -> str:
    """Return the stack of the access that decided the platform, "" before; kept when deciding failed."""
    return _state.init_trace


@contextlib.contextmanager
def override(platform: Platform) -> Iterator[Platform]:
    """Use ``platform`` in this context, for tests; its hooks are not run."""
    token = _override.set(platform)
    try:
        yield platform
    finally:
        _override.reset(token)


def reset() -> None:
    """Forget the platform and undo what its hooks registered, for tests; loaded libraries stay."""
    global _state
    with _lock:
        journal.roll_back(e for e in journal.entries() if e.owner is not None)
        _state = _State()
        context.mark_kernels_loaded(loaded=False)
        general.forget()
        order.forget()


def _after_fork_in_child() -> None:
    """Give the child a fresh lock, and drop a resolution that was under way in another thread.

    One that this thread is in, in a hook that forks, goes on: another access in the child gives what it gives in
    the parent, and does not run the hook, which forks, again.
    """
    global _lock, _state
    _lock = threading.RLock()
    if _state.platform is None and _state.thread != threading.get_ident():
        _state = _State()


os.register_at_fork(after_in_child=_after_fork_in_child)
