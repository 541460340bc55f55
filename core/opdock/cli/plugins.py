"""``opdock plugins``: what is installed, from metadata alone; nothing of it is imported."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """List every entry point of the groups that opdock reads."""
    from opdock import __version__
    from opdock.cli import render
    from opdock.discovery import metadata
    from opdock.platforms.who_may_run import requirement_fault

    scan = metadata.scan()
    rows = [
        (c.group, c.name, c.dist.name, c.dist.version, c.value, requirement_fault(c, __version__) or "may run")
        for c in scan.candidates
    ]
    names = ("group", "name", "distribution", "version", "target", "may run")
    if args.json:
        plugins = [dict(zip((*names[:5], "may_run"), row, strict=True)) for row in rows]
        render.as_json({"schema": "opdock.plugins/1", "plugins": plugins, "issues": list(scan.issues)})
        return 0
    if not rows:
        render.line("No plugin is installed; opdock runs on its built-in CPU platform.")
    render.table(names, rows)
    for issue in scan.issues:
        render.line(f"note: {issue}")
    return 0
