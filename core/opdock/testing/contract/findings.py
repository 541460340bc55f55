"""What the check says: findings, and the rules that they belong to."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

ERROR, WARNING, NOTE = "error", "warning", "note"
LEVELS = (ERROR, WARNING, NOTE)


@dataclass(frozen=True)
class Place:
    """Where something stands: a file relative to the package's root, line and column from 1, 0 where unknown."""

    file: str = ""
    line: int = 0
    column: int = 0


@dataclass(frozen=True)
class Finding:
    """One finding.

    Args:
        rule: its id, ``opdock/hook-unknown`` for example.
        level: error, warning or note.
        message: what, and who: one line.
        why: the cause, or what happens because of it.
        remedy: what to do or paste.
        file: relative to the package's root; "" where it is of no file.
        line: from 1; 0 where unknown.
        column: from 1; 0 where unknown.
    """

    rule: str
    level: str
    message: str
    why: str = ""
    remedy: str = ""
    file: str = ""
    line: int = 0
    column: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Rule:
    """A rule: its id, its level unless a finding says otherwise, and what it is about, in a sentence or two."""

    id: str
    level: str
    help: str


def finding(
    rule: str, message: str, at: Place | None = None, *, why: str = "", remedy: str = "", level: str = ""
) -> Finding:
    """Return a finding of a rule that is known; the level is the rule's unless one is given."""
    from opdock.testing.contract.rules import RULES

    place = at or Place()
    known = RULES[rule]
    return Finding(known.id, level or known.level, message, why, remedy, place.file, place.line, place.column)


def in_order(findings: list[Finding]) -> tuple[Finding, ...]:
    """Return the findings, each once: errors first, then by rule and place."""
    return tuple(
        sorted(
            dict.fromkeys(findings),
            key=lambda f: (LEVELS.index(f.level), f.rule, f.file, f.line, f.column, f.message),
        )
    )
