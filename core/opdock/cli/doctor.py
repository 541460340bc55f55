"""``opdock doctor``: the platform, every candidate's verdict, and what to type next. It never raises."""

from __future__ import annotations

import argparse
import platform as host
import sys
from typing import TYPE_CHECKING, Any

from opdock.cli import options

if TYPE_CHECKING:
    from opdock.cli.activation import Activation
    from opdock.discovery.metadata import Scan
    from opdock.platforms.selection import Selection

SCHEMA = "opdock.doctor/1"
NO_PLATFORM = 3
NO_SANDBOX = "Plugins were asked in child processes with a time limit; that is no sandbox."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    options.add_json(parser)
    parser.add_argument("--no-order", action="store_true", help="do not activate the platform to show the order")


def run(args: argparse.Namespace) -> int:
    """Examine the candidates, then activate the winner to show the order, all in child processes."""
    from opdock.cli import render
    from opdock.cli.activation import Activation, activate_in_child
    from opdock.discovery import metadata
    from opdock.env import probe_timeout
    from opdock.errors import OpdockError
    from opdock.platforms import examine

    scan = metadata.scan()
    selection, done = None, Activation()
    try:
        selection = examine.examine(scan)
        if selection.error is None and not args.no_order:
            done = activate_in_child(3 * probe_timeout())  # more than asking: kernels are loaded
        elif selection.error is not None:
            done = Activation(error=f"{type(selection.error).__name__}: {selection.error}")
    except OpdockError as err:  # a variable with an impossible value
        done = Activation(error=f"{type(err).__name__}: {err}")
    told = _report(scan, selection, done)
    if args.json:
        render.as_json(told)
    else:
        _print(told)
    return NO_PLATFORM if told["error"] else 0


def _report(scan: Scan, selection: Selection | None, done: Activation) -> dict[str, Any]:
    from opdock import __version__, env
    from opdock.cli import plugins
    from opdock.platforms import current
    from opdock.platforms.selection import unknown_names

    others = [p for p in plugins.facts(scan) if p["group"] != "vllm.platform_plugins"]
    notes = [*scan.issues, *unknown_names(current.request_from_env(), [c.name for c in scan.candidates])]
    warnings = list(dict.fromkeys([*(selection.warnings if selection else ()), *done.messages]))
    hints = list(selection.hints) if selection else []
    return {
        "schema": SCHEMA,
        "platform": None if done.error or selection is None else selection.winner,
        "class_path": None if done.error or selection is None else selection.class_path,
        "reason": selection.reason if selection else "",
        "error": done.error,
        "candidates": [
            {
                "name": v.name,
                "distribution": v.distribution,
                "version": v.version,
                "target": v.value,
                "verdict": v.verdict,
                "reason": v.reason,
            }
            for v in (selection.verdicts if selection else ())
        ],
        "other_plugins": others,
        # the library warns of these as well
        "warnings": [w for w in warnings if w not in {*notes, *hints}],
        "notes": notes,
        "hints": hints,
        "versions": _versions(__version__, scan),
        "environment": env.in_force(),
        "order": list(done.steps),
        "sandbox": NO_SANDBOX,
        "next": _next(done.error, hints),
    }


def _versions(opdock: str, scan: Scan) -> dict[str, str]:
    from opdock.discovery.metadata import installed_version

    found = {"opdock": opdock, "python": sys.version.split()[0], "machine": f"{host.system()} {host.machine()}"}
    for name in ("torch", "triton", "transformers", "gguf", "rich"):
        version = installed_version(name)
        if version is not None:
            found[name] = version
    for candidate in scan.candidates:
        found.setdefault(candidate.dist.name, candidate.dist.version)
    return found


def _next(error: str, hints: list[str]) -> str:
    if error:
        remedy = [line for line in error.splitlines() if line.startswith("Remedy: ")]
        told = remedy[-1].removeprefix("Remedy: ") if remedy else "Known: "
        return "OPDOCK_PLATFORM=cpu opdock doctor" if told.startswith("Known: ") else told
    return hints[0].rpartition(": ")[2] if hints else "opdock explain"


def _print(told: dict[str, Any]) -> None:
    from opdock.cli import render

    if told["error"]:
        render.line("Platform: none can be used.")
        render.block(told["error"])
    else:
        render.line(f"Platform: {told['platform']}, because: {told['reason']}")
    render.line()
    columns = ("name", "distribution", "version", "target", "verdict", "reason")
    render.table(columns, [[c[k] for k in columns] for c in told["candidates"]], title="Platform plugins")
    columns = ("group", "name", "distribution", "version", "verdict", "reason")
    render.table(columns, [[p[k] for k in columns] for p in told["other_plugins"]], title="Other plugins")
    for key in ("warnings", "notes", "hints"):
        for text in told[key]:
            render.line(f"{key[:-1]}: {text}")
    render.table(("step", "ms", "detail"), [tuple(s.values()) for s in told["order"]], title="Order that ran")
    render.table(("what", "version"), told["versions"].items(), title="Versions")
    render.table(("variable", "value"), told["environment"].items(), title="Environment")
    render.line(told["sandbox"])
    render.line(f"Next: {told['next']}")
