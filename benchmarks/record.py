"""What every figure is written down with: the date, the machine, the versions and the command."""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

Row = tuple[str, float, str, "float | None", str]
"""What was measured, the figure, its unit, the budget if there is one, and ``<=`` or ``>=``."""


@dataclass(frozen=True)
class Result:
    """The outcome of one script."""

    name: str
    conditions: str
    packages: Sequence[str]
    rows: Sequence[Row]
    raw: Mapping[str, float]

    def missed(self) -> list[Row]:
        """Return the rows that miss their budget."""
        return [row for row in self.rows if not _met(row)]

    def table(self) -> str:
        """Return the rows as aligned text."""
        width = max(len(row[0]) for row in self.rows)
        lines = [f"{'what':{width}}  {'measured':>11}  {'budget':>11}"]
        for what, figure, unit, limit, sign in self.rows:
            budget = "" if limit is None else f"{sign} {limit:g} {unit}"
            verdict = "" if _met((what, figure, unit, limit, sign)) else "  MISSED"
            lines.append(f"{what:{width}}  {figure:8.3f} {unit:2}  {budget:>11}{verdict}")
        return "\n".join(lines)


def _met(row: Row) -> bool:
    _, figure, _, limit, sign = row
    return limit is None or (figure <= limit if sign == "<=" else figure >= limit)


def circumstances(packages: Sequence[str], conditions: str) -> dict[str, Any]:
    """Return the date, the machine, the versions and the command of this run."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": f"{_cpu()}, {os.cpu_count()} CPUs, {platform.system()} {platform.machine()}",
        "load": round(os.getloadavg()[0], 2),
        "conditions": conditions,
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in packages}},
        "command": " ".join(["python", *map(_relative, sys.argv)]),
    }


def write(result: Result, folder: Path) -> None:
    """Write ``NAME.json`` and ``NAME.txt`` into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = circumstances(result.packages, result.conditions)
    keys = ("what", "figure", "unit", "budget", "sign")
    rows = [dict(zip(keys, row, strict=True)) for row in result.rows]
    data = {**facts, "rows": rows, "raw": dict(result.raw)}
    (folder / f"{result.name}.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    head = [f"{facts['date']}  {facts['machine']}, load {facts['load']}", versions, result.conditions]
    head.append("$ " + facts["command"])
    text = "\n".join(head) + "\n\n" + result.table() + "\n"
    (folder / f"{result.name}.txt").write_text(text, encoding="utf-8")


def _relative(argument: str) -> str:
    path = Path(argument)
    return str(path.relative_to(Path.cwd())) if path.is_absolute() and path.is_relative_to(Path.cwd()) else argument


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


def _cpu() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            found = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        found = []
    return found[0] if found else platform.processor() or "unknown CPU"
