"""``opdock doctor``: the platform, every candidate's verdict, and what to type next. It never raises."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform as host
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opdock.discovery.metadata import Scan
    from opdock.platforms.selection import Selection

NO_PLATFORM = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--no-order", action="store_true", help="do not activate the platform to show the order")


def run(args: argparse.Namespace) -> int:
    """Examine the candidates in child processes, then activate the winner in this one to show the order."""
    from opdock.cli import render
    from opdock.discovery import metadata
    from opdock.errors import OpdockError
    from opdock.platforms import examine

    scan = metadata.scan()
    try:
        selection = examine.examine(scan)
    except OpdockError as err:  # a variable with an impossible value
        render.line(f"{type(err).__name__}: {err}", file=sys.stderr)
        return NO_PLATFORM
    steps, problem = _activate() if selection.error is None and not args.no_order else ([], "")
    error = str(selection.error) if selection.error is not None else problem
    told = _report(scan, selection, steps, error)
    if args.json:
        render.as_json(told)
    else:
        _print(told)
    return NO_PLATFORM if error else 0


def _activate() -> tuple[list[dict[str, Any]], str]:
    """Resolve the platform in this process; return the steps that ran and the error, if any."""
    import logging

    from opdock.errors import OpdockError
    from opdock.platforms import current, order

    logging.getLogger("opdock").addHandler(logging.NullHandler())  # the report says it all
    problem = ""
    try:
        current.resolve()
    except OpdockError as err:
        problem = f"{type(err).__name__}: {err}"
    return [{"step": s.name, "ms": round(s.seconds * 1e3, 2), "detail": s.detail} for s in order.steps()], problem


def _report(scan: Scan, selection: Selection, steps: list[dict[str, Any]], error: str) -> dict[str, Any]:
    from opdock import __version__, env
    from opdock.discovery import metadata
    from opdock.platforms import current, hooks
    from opdock.platforms.selection import unknown_names

    others = [
        {"group": c.group, "plugin": c.label, "runs": not (why := hooks.may_run(c, __version__)), "reason": why}
        for group in (metadata.GENERAL_GROUP, metadata.HOOK_GROUP)
        for c in scan.candidates_of(group)
    ]
    notes = [*scan.issues, *unknown_names(current.request_from_env(), [c.name for c in scan.candidates])]
    return {
        "schema": "opdock.doctor/1",
        "platform": None if error else selection.winner,
        "reason": selection.reason,
        "error": error,
        "candidates": [
            {
                "name": v.name,
                "distribution": v.distribution,
                "version": v.version,
                "target": v.value,
                "verdict": v.verdict,
                "reason": v.reason,
            }
            for v in selection.verdicts
        ],
        "other_plugins": others,
        "warnings": list(selection.warnings),
        "notes": notes,
        "hints": list(selection.hints),
        "versions": _versions(__version__, scan),
        "environment": env.in_force(),
        "order": steps,
        "next": _next(selection, error),
    }


def _versions(opdock: str, scan: Scan) -> dict[str, str]:
    found = {"opdock": opdock, "python": sys.version.split()[0], "machine": f"{host.system()} {host.machine()}"}
    for name in ("torch", "triton", "transformers", *sorted({c.dist.name for c in scan.candidates})):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _next(selection: Selection, error: str) -> str:
    if error:
        remedy = [line for line in error.splitlines() if line.startswith("Remedy: ")]
        return remedy[-1].removeprefix("Remedy: ") if remedy else "OPDOCK_PLATFORM=cpu opdock doctor"
    if selection.hints:
        return selection.hints[0].rpartition(": ")[2]
    return "opdock explain"


def _print(told: dict[str, Any]) -> None:
    from opdock.cli import render

    if told["error"]:
        render.line("Platform: none can be used.")
        render.line(told["error"])
    else:
        render.line(f"Platform: {told['platform']}, because: {told['reason']}")
    render.line()
    columns = ("name", "distribution", "version", "target", "verdict", "reason")
    render.table(columns, [[c[k] for k in columns] for c in told["candidates"]], title="Platform plugins")
    rows = [
        (o["group"], o["plugin"], "runs" if o["runs"] else "does not run", o["reason"]) for o in told["other_plugins"]
    ]
    render.table(("group", "plugin", "", "reason"), rows, title="Other plugins")
    for key in ("warnings", "notes", "hints"):
        for text in told[key]:
            render.line(f"{key[:-1]}: {text}")
    render.table(("step", "ms", "detail"), [tuple(s.values()) for s in told["order"]], title="Order that ran")
    render.table(("what", "version"), told["versions"].items(), title="Versions")
    render.table(("variable", "value"), told["environment"].items(), title="Environment")
    render.line("Plugins were asked in child processes with a time limit; that is no sandbox.")
    render.line(f"Next: {told['next']}")
