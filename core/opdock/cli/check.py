"""``opdock check PACKAGE``: a plugin package against the contract, from its text; nothing of it runs without --run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opdock.cli import options

if TYPE_CHECKING:
    from opdock.testing.contract import Finding, Result

SCHEMA = "opdock.check/1"
_MOST = 8  # findings of one rule that are shown in full


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "package",
        metavar="PACKAGE",
        help="a distribution, an entry point, an import package, or the path of a source folder or a wheel",
    )
    parser.add_argument("--run", action="store_true", help="import it, ask it and activate it too, in child processes")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="of each child of --run, in seconds")
    parser.add_argument("--strict", action="store_true", help="exit with 1 for warnings too")
    parser.add_argument("--sarif", metavar="FILE", help="write the findings as SARIF 2.1.0 too")
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Check the package and return 0, or 1 where there are errors (with --strict, warnings)."""
    from opdock import __version__
    from opdock.cli import ERROR, USAGE, render
    from opdock.errors import UnknownNameError
    from opdock.testing.contract import checking, subject

    if not 0 < args.timeout < 3600:
        render.line("--timeout is a number of seconds between 0 and 3600.", file=_stderr())
        return USAGE
    try:
        found = subject.find(args.package)
    except UnknownNameError as err:
        render.block(f"{type(err).__name__}: {err}", file=_stderr())
        return USAGE
    result = checking.check_subject(found)
    if args.run:
        from opdock.testing.contract.running import with_run

        result = with_run(result, found, timeout=args.timeout)
    if args.sarif:
        from opdock.testing.contract import sarif

        text = json.dumps(sarif.document(result, opdock_version=__version__), indent=1)
        Path(args.sarif).write_text(text + "\n", encoding="utf-8")
    if args.json:
        render.as_json(facts(result))
    else:
        _print(result)
    counts = result.count()
    return ERROR if counts["error"] or (args.strict and counts["warning"]) else 0


def _stderr() -> Any:
    import sys

    return sys.stderr


def facts(result: Result) -> dict[str, Any]:
    """Return the result as plain data."""
    return {
        "schema": SCHEMA,
        "package": result.name,
        "version": result.version,
        "kind": result.kind,
        "path": result.path,
        "written_for": "vllm" if result.foreign else "opdock",
        "files": result.files,
        "seconds": round(result.seconds, 3),
        "counts": result.count(),
        "findings": [f.as_dict() for f in result.findings],
    }


def _print(result: Result) -> None:
    from opdock.cli import render

    counts = result.count()
    render.line(f"{result.name} {result.version}  ({result.kind}: {result.path}, {result.files} files)")
    port = [f for f in result.findings if f.rule == "opdock/port-import"]
    shown: dict[tuple[str, str], list[Finding]] = {}
    for f in result.findings:
        if f not in port:
            shown.setdefault((f.level, f.rule), []).append(f)
    for (level, rule), group in shown.items():
        render.line()
        render.line(f"{level}  {rule}" + (f"  ({len(group)})" if len(group) > 1 else ""))
        _group(group)
    if port:
        _port(port)
    render.line()
    render.line(", ".join(f"{n} {level}{'s' if n != 1 else ''}" for level, n in counts.items()) + ".")
    if not any(counts.values()):
        render.line("Nothing to object to.")


def _group(group: list[Finding]) -> None:
    """Write the findings of a rule: what they have in common once."""
    from opdock.cli import render

    same_why = len({f.why for f in group}) == 1
    same_remedy = len({f.remedy for f in group}) == 1
    for f in group[:_MOST]:
        render.line(f"  {_at(f)}{f.message}")
        if f.why and not same_why:
            render.line(f"      {f.why}")
        if f.remedy and not same_remedy:
            _remedy(f.remedy, "      ")
    if len(group) > _MOST:
        render.line(f"  and {len(group) - _MOST} more (--json shows all)")
    if same_why and group[0].why:
        render.line(f"    {group[0].why}")
    if same_remedy and group[0].remedy:
        _remedy(group[0].remedy, "    ")


def _remedy(text: str, indent: str) -> None:
    from opdock.cli import render

    first, *rest = text.splitlines()
    render.line(f"{indent}Remedy: {first}")
    for line in rest:
        render.line(f"{indent}        {line}")


def _at(f: Finding) -> str:
    if not f.file:
        return ""
    return f"{f.file}:{f.line}: " if f.line else f"{f.file}: "


def _port(port: list[Finding]) -> None:
    """Write what of vLLM the package uses: what has a counterpart in a table, the rest as counts."""
    from opdock.cli import render

    known = [f for f in port if "no counterpart" not in f.message]
    rows = []
    for f in known:
        theirs, _, ours = f.message.partition(": ")
        rows.append((theirs, ours, f"{f.file}:{f.line}", f.why))
    render.line()
    render.line(f"note  opdock/port-import: {len(port)} names of vLLM, {len(known)} with a counterpart here")
    render.table(("vLLM", "here", "first at", "note"), rows)
    areas: dict[str, int] = {}
    for f in port:
        if f not in known:
            area = ".".join(f.message.partition(":")[0].split(".")[:3])
            areas[area] = areas.get(area, 0) + 1
    if areas:
        told = ", ".join(f"{area} {n}" for area, n in sorted(areas.items(), key=lambda a: -a[1]))
        render.line(f"  No counterpart, most of it an engine's: {told}. --json lists each.")
