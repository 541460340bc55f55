"""Putting the rules together: from a package to all findings about it."""

from __future__ import annotations

import contextlib
import gc
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from opdock.discovery.entry_points import HOOK_GROUP, PLATFORM_GROUP, Line
from opdock.discovery.folders import normalise
from opdock.testing.contract import (
    foreign,
    hookimpls,
    imports,
    metadata,
    platform_class,
    priorities,
    providers,
    register,
    replacements,
    subject,
)
from opdock.testing.contract.findings import LEVELS, Finding, in_order
from opdock.testing.contract.host import Facts
from opdock.testing.contract.source import Found
from opdock.testing.contract.world import World

_ALONE = {"opdock", "torch", "triton", "numpy", "packaging"}


@dataclass(frozen=True)
class Result:
    """What the check found.

    Args:
        name: of the distribution.
        version: of it.
        kind: installed, folder or wheel.
        path: where it is.
        foreign: whether it is written for vLLM.
        files: how many Python files were read.
        seconds: how long it took.
        findings: errors first.
    """

    name: str
    version: str
    kind: str
    path: str
    foreign: bool
    files: int
    seconds: float
    findings: tuple[Finding, ...]

    def count(self) -> dict[str, int]:
        """Return how many findings there are of each level."""
        found = Counter(f.level for f in self.findings)
        return {level: found[level] for level in LEVELS}


def check_package(wanted: str, *, opdock_version: str | None = None) -> Result:
    """Check a package; nothing of it is imported or run.

    Args:
        wanted: a distribution, an entry point, an import package, or the path of a source folder or wheel.
        opdock_version: the version that its requirement must admit; None takes this one's.

    Raises: UnknownNameError where nothing is called so.
    """
    return check_subject(subject.find(wanted), opdock_version=opdock_version)


def check_subject(found: subject.Subject, *, opdock_version: str | None = None) -> Result:
    """Check a package that has been found."""
    from opdock import __version__

    start = time.perf_counter()
    world = World(found.package)
    with _without_collector():
        told = _Check(found, world, opdock_version or __version__)
        told.run()
    return Result(
        found.name,
        found.version,
        found.kind,
        found.path,
        told.foreign,
        len(found.package.paths),
        time.perf_counter() - start,
        in_order([*told.findings, *found.package.findings]),
    )


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Pause the cycle collector: it would walk millions of syntax nodes, none of which is garbage yet."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class _Check:
    """One run: every rule family gets what the ones before it found out."""

    def __init__(self, found: subject.Subject, world: World, version: str) -> None:
        self.subject, self.world, self.version = found, world, version
        self.findings: list[Finding] = []
        self.entries = metadata.entries_of(found)
        self.platforms: list[platform_class.PlatformFact] = []
        self.registers: list[Found] = []
        self.foreign = self._is_foreign()

    def _is_foreign(self) -> bool:
        names = {normalise(_requirement_name(r)) for r in self.subject.requires}
        return "opdock" not in names and bool(foreign.imports_of(self.world))

    def run(self) -> None:
        """Run every family."""
        self.findings += metadata.check(self.subject, self.world, self.version)
        for line in self._of(PLATFORM_GROUP):
            self._platform(line)
        for fact in self.platforms:
            self.findings += platform_class.check(self.world, fact)
        facts = Facts.of(self.world)
        self._kernels(facts)
        modules = [(line.value or "").partition(":")[0].strip() for line in self._of(PLATFORM_GROUP)]
        classes = [fact.cls.module.name for fact in self.platforms]
        self.findings += imports.check(self.world, modules, self.registers, classes)

    def _of(self, group: str) -> Sequence[Line]:
        return [line for line in self.entries if line.group == group]

    def _platform(self, line: Line) -> None:
        answers = register.answers_of(self.world, line)
        if answers is None:
            return
        self.registers.append(answers.found)
        self.findings += register.check(self.world, self.subject, line, answers)
        for path, _ in answers.paths:
            cls = register.platform_class(self.world, path)
            known = {p.cls.name for p in self.platforms}
            is_own = isinstance(cls, Found) and self.world.own(cls) and hasattr(cls.node, "bases")
            if isinstance(cls, Found) and is_own and cls.name not in known:
                self.platforms.append(platform_class.fact_of(self.world, cls))

    def _kernels(self, facts: Facts) -> None:
        hooks = [f for line in self._of(HOOK_GROUP) if (f := metadata.definition_of(self.world, line)) is not None]
        marked = [f for name, f, _ in hookimpls.implementations(hooks) if name == "default_ir_op_priority"]
        self.findings += hookimpls.check(self.world, hooks)
        enums = {p.enum for p in self.platforms if p.enum is not None}
        unknown = any(p.enum is None for p in self.platforms) or bool(self._of(HOOK_GROUP))
        replaced = list(replacements.registrations(self.world))
        self.findings += replacements.check(facts, replaced, set() if unknown else enums)
        provided = list(providers.registrations(facts))
        self.findings += providers.check(facts, provided)
        lists = priorities.of_package(self.platforms, marked)
        lists.exact &= bool(self.entries) and (bool(self.platforms) or not self._of(PLATFORM_GROUP))
        self.findings += priorities.check(facts, lists, provided, alone=self._alone())
        self.findings += _both(facts, replaced, provided)
        if self.foreign:
            self.findings += foreign.check(facts, self.platforms, replaced)

    def _alone(self) -> bool:
        return {normalise(_requirement_name(r)) for r in self.subject.requires} <= _ALONE


def _requirement_name(text: str) -> str:
    for i, letter in enumerate(text):
        if not (letter.isalnum() or letter in "-_."):
            return text[:i]
    return text


def _both(
    facts: Facts, replaced: Sequence[replacements.Replacement], provided: Sequence[providers.Provider]
) -> list[Finding]:
    from opdock.testing.contract.findings import finding

    by_op = {p.op: p for p in provided}
    out = []
    for one in replaced:
        target = replacements.target_of(facts, one)
        if target is not None and target.op in by_op:
            out.append(
                finding(
                    "op-both",
                    f"{target.op} has a replacement ({one.cls.name if one.cls else '?'}) and a provider.",
                    one.module.at(one.node),
                    why="the layer runs the replacement; code that calls the IR op itself runs the provider.",
                )
            )
    return out
