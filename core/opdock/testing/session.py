"""A run of the kit: it runs each check once what it needs has passed, and goes on whatever happens."""

from __future__ import annotations

import fnmatch
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from opdock.errors import OpdockError
from opdock.testing import asking
from opdock.testing.check import FACTS, PACKAGE, CannotRun, Check, Fault, all_checks
from opdock.testing.child import Child, Died
from opdock.testing.results import FAILED, NOT_RUN, PASSED, SKIPPED, Report, Result
from opdock.testing.settings import Settings, Target, find_target


class Session:
    """One run over one package.

    Args:
        settings: what to do.
        skips: patterns of checks (``provider.compiled``, ``provider.values[rms_norm/*]``) that the package's authors
            leave out, each with the reason.

    Raises: UnknownNameError if no such package is installed; ConfigError for a skip without a reason.
    """

    def __init__(self, settings: Settings, skips: Mapping[str, str] | None = None) -> None:
        """Find the package; nothing of it runs yet."""
        self.settings, self.skips = settings, dict(skips or {})
        for pattern, reason in self.skips.items():
            if not str(reason).strip():
                raise Fault(f"The skip {pattern!r} has no reason.", remedy=f'skips = {{"{pattern}": "why"}}')
        self.target: Target = find_target(settings.plugin)
        self.checks: dict[str, Check] = all_checks()
        self._path, self._start_time = list(sys.path), time.perf_counter()
        self._results: dict[tuple[str, str], Result] = {}
        self._child: Child | None = None

    # -- facts

    @cached_property
    def asked(self) -> dict[str, Any]:
        """What the package answered in a fresh interpreter."""
        return asking.ask(self.settings, self.target)

    @cached_property
    def activation(self) -> dict[str, Any]:
        """What came of activating it."""
        if self.asked["status"] != "answered":
            return {"status": "never", "error": "register() gave no answer"}
        if self.target.is_platform and not self.asked.get("class_path") and self.asked["answer"] is not None:
            return {"status": "never", "error": f"register() gave {self.asked['answer']}"}
        try:
            self._child = self._start()
        except Died as err:
            status = "timeout" if err.timed_out else "exited"
            return {"status": status, "step": err.step, "error": str(err), "trace": ""}
        return self._child.activation

    def _start(self) -> Child:
        return Child(self.settings, self.target, self.asked.get("class_path"), self._path)

    @cached_property
    def device(self) -> str:
        """What the checks run on, in words."""
        told = self.activation
        if told["status"] == "activated":
            return str(self.settings.device or told.get("device_type") or "cpu")
        return f"nothing: {told['status']}, {str(told.get('error', '')).splitlines()[0] if told.get('error') else ''}"

    # -- what there is to check

    def items(self) -> Iterator[tuple[Check, str]]:
        """Yield every check with every subject, in the order in which they run."""
        for check in self.checks.values():
            for subject in self.subjects(check):
                yield check, subject

    def subjects(self, check: Check) -> Sequence[str]:
        """Return the subjects of a check; one without a name where the package was never active, and none are known."""
        if check.kind == PACKAGE:
            return ("",)
        return tuple(self.activation.get(check.kind, ("",)))

    # -- running

    def run(self, name: str, subject: str = "") -> Result:
        """Return the result of a check; what it needs is run first, each only once."""
        key = name, subject
        if key not in self._results:
            self._results[key] = self._decide(self.checks[name], subject)
        return self._results[key]

    def _decide(self, check: Check, subject: str) -> Result:
        start = time.perf_counter()
        reason = self.skip_of(check.name, subject)
        if reason is not None:
            return Result(check.name, subject, SKIPPED, reason)
        for need in (*check.needs, *check.after):
            subjects = self.subjects(self.checks[need])
            if subject not in subjects and "" not in subjects:
                continue  # a check of other subjects than this one
            before = self.run(need, subject if subject in subjects else "")
            if before.status == FAILED or (before.status == NOT_RUN and need in check.needs):
                why = before.message.splitlines()[0] if before.status == NOT_RUN else "failed"
                text = why if before.status == NOT_RUN else f"{before.id} {why}"
                return Result(check.name, subject, NOT_RUN, text)
        if check.where == FACTS:
            status, message = self._judge(check)
            return Result(check.name, subject, status, message, time.perf_counter() - start)
        return self._ask(check, subject)

    def _judge(self, check: Check) -> tuple[str, str]:
        try:
            return PASSED, check.run(self) or ""
        except CannotRun as err:
            return NOT_RUN, str(err)
        except OpdockError as err:
            return FAILED, str(err)

    def _ask(self, check: Check, subject: str) -> Result:
        start = time.perf_counter()
        told = self.activation
        if self._child is None:
            if told["status"] not in ("activated", "declined"):
                return Result(check.name, subject, NOT_RUN, f"the package was not activated: {told['status']}")
            try:
                self._child = self._start()
            except Died as err:
                text = f"After the last check ended the process, activating the package anew: {err}"
                return Result(check.name, subject, FAILED, text, time.perf_counter() - start)
        try:
            answer = self._child.ask(check.name, subject)
        except Died as err:
            self._child.close()
            self._child = None
            return Result(check.name, subject, FAILED, str(err), time.perf_counter() - start)
        return Result(check.name, subject, answer["status"], answer["message"], time.perf_counter() - start)

    def skip_of(self, name: str, subject: str) -> str | None:
        """Return the declared reason to leave a check out, or None."""
        return next((reason for pattern, reason in self.skips.items() if _matches(pattern, name, subject)), None)

    def unused_skips(self) -> tuple[str, ...]:
        """Return the declared skips that match no check of this package."""
        items = [(check.name, subject) for check, subject in self.items()]
        return tuple(p for p in self.skips if not any(_matches(p, *item) for item in items))

    def report(self) -> Report:
        """Return the results so far."""
        dist = self.target.candidate.dist
        return Report(
            plugin=self.target.candidate.name,
            distribution=f"{dist.name} {dist.version}",
            grid=self.settings.grid,
            seed=self.settings.seed,
            device=self.device,
            seconds=time.perf_counter() - self._start_time,
            results=list(self._results.values()),
            unused_skips=self.unused_skips(),
        )

    def close(self) -> None:
        """Stop the child."""
        if self._child is not None:
            self._child.close()
            self._child = None


def _matches(pattern: str, name: str, subject: str) -> bool:
    literal = pattern.replace("[", "[[]")  # brackets name the subject here
    return any(fnmatch.fnmatchcase(text, literal) for text in (name, f"{name}[{subject}]"))


def run(
    plugin: str,
    *,
    grid: str = "small",
    seed: int = 0,
    timeout: float = 0.0,
    environ: Mapping[str, str] | None = None,
    device: str = "",
    skips: Mapping[str, str] | None = None,
    only: Sequence[str] = (),
) -> Report:
    """Check an installed package and return what was found.

    Args:
        plugin: name of its entry point, or of the distribution.
        grid: ``small`` or ``full``.
        seed: of the generated inputs.
        timeout: seconds that one check may take; 0 takes the grid's.
        environ: variables that the package needs.
        device: where tensors are made, where that is not the platform's.
        skips: checks to leave out, each with the reason.
        only: patterns of names of checks to run; empty runs all.

    Raises: UnknownNameError if no such package is installed.
    """
    session = Session(Settings(plugin, grid, seed, timeout, dict(environ or {}), device), skips)
    try:
        for check, subject in session.items():
            if not only or any(fnmatch.fnmatchcase(check.name, pattern) for pattern in only):
                session.run(check.name, subject)
        return session.report()
    finally:
        session.close()
