"""``opdock plugins``: what is installed, from metadata alone; nothing of it is imported."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from opdock.cli import options

if TYPE_CHECKING:
    from opdock.discovery.metadata import Candidate, Scan

SCHEMA = "opdock.plugins/1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """List every entry point of the groups that opdock reads."""
    from opdock.cli import render
    from opdock.discovery import metadata

    scan = metadata.scan()
    told = facts(scan)
    if args.json:
        render.as_json({"schema": SCHEMA, "plugins": told, "issues": list(scan.issues)})
        return 0
    if not told:
        render.line("No plugin is installed; opdock runs on its built-in CPU platform.")
    columns = ("group", "name", "distribution", "version", "target")
    rows = [(*(p[c] for c in columns), "yes" if p["may_run"] else p["verdict"], p["reason"]) for p in told]
    render.table((*columns, "may run", "why not"), rows)
    for issue in scan.issues:
        render.line(f"note: {issue}")
    return 0


def facts(scan: Scan) -> list[dict[str, Any]]:
    """Return what is known of each entry point without importing it: whether it may run, and why not."""
    from opdock import __version__, env
    from opdock.discovery import metadata
    from opdock.platforms import selection
    from opdock.platforms.who_may_run import may_run

    # as platforms.current reads it, without importing what activates a platform
    request = selection.Request(env.forced_platform(), env.target_device(), env.plugin_filter(), __version__)
    platforms = scan.candidates_of(metadata.PLATFORM_GROUP)
    told = []
    for c, verdict in zip(platforms, selection.sift(platforms, request), strict=True):
        may = verdict.verdict == selection.PENDING
        told.append(_fact(c, "may run" if may else verdict.verdict, verdict.reason))
    for group in (metadata.GENERAL_GROUP, metadata.HOOK_GROUP):
        for c in scan.candidates_of(group):
            reason = may_run(c, __version__)
            if not reason:
                told.append(_fact(c, "may run", ""))
            elif c.dist.requires_opdock is None:
                told.append(_fact(c, "foreign", reason))
            else:
                told.append(_fact(c, "filtered", reason))
    return told


def _fact(candidate: Candidate, verdict: str, reason: str) -> dict[str, Any]:
    return {
        "group": candidate.group,
        "name": candidate.name,
        "distribution": candidate.dist.name,
        "version": candidate.dist.version,
        "target": candidate.value,
        "location": candidate.dist.location,
        "may_run": verdict == "may run",
        "verdict": verdict,
        "reason": reason,
    }
