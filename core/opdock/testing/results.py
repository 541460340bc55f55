"""What the kit found, as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

SCHEMA = "opdock.conformance/1"

PASSED, FAILED, SKIPPED, NOT_RUN = "passed", "failed", "skipped", "not run"
"""``skipped``: the package's authors declared it, with a reason. ``not run``: the kit could not, and says why."""


@dataclass(frozen=True)
class Result:
    """The outcome of one check of one subject.

    Args:
        check: name, for example ``provider.values``.
        subject: what was checked, for example ``rms_norm/acme``; "" for the package as a whole.
        status: passed, failed, skipped or not run.
        message: what is wrong, why it was left out, or what was looked at.
        seconds: how long it took.
    """

    check: str
    subject: str
    status: str
    message: str
    seconds: float = 0.0

    @property
    def id(self) -> str:
        """Check and subject, as skips name them."""
        return f"{self.check}[{self.subject}]" if self.subject else self.check


@dataclass
class Report:
    """Every result of one run, in order; ``to_dict`` has a stable schema.

    Args:
        plugin: name of the entry point.
        distribution: name and version of the package.
        grid: small or full.
        seed: of the generated inputs.
        device: what the checks ran on, or why on nothing.
        seconds: since the run began.
        results: one for each check of each subject.
        unused_skips: declared skips that match no check.
    """

    plugin: str
    distribution: str
    grid: str
    seed: int
    device: str = ""
    seconds: float = 0.0
    results: list[Result] = field(default_factory=list)
    unused_skips: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not any(r.status == FAILED for r in self.results)

    def of(self, status: str) -> Iterator[Result]:
        """Yield the results of one status."""
        return (r for r in self.results if r.status == status)

    def counts(self) -> dict[str, int]:
        """Return how many results each status has."""
        found = Counter(r.status for r in self.results)
        return {status: found[status] for status in (PASSED, FAILED, SKIPPED, NOT_RUN)}

    def to_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {"schema": SCHEMA, "ok": self.ok, "counts": self.counts(), **asdict(self)}
