"""``opdock explain``: which class, method and provider serves an op, and why not the others."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from opdock.cli import options

if TYPE_CHECKING:
    from opdock.explain import ClassRow, Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("op", nargs="?", metavar="OP", help="an op class or IR op; all without it")
    parser.add_argument("--shape", metavar="TOKENSxHIDDEN", help="of the activation, for example 1x4096")
    parser.add_argument("--dtype", metavar="DTYPE", help="of the activation; the platform's first without it")
    options.add_json(parser)
    options.add_config(parser)


def run(args: argparse.Namespace) -> int:
    """Print the report."""
    config = options.config_of(args)
    shape, dtype = options.shape_of(args.shape), options.dtype_of(args.dtype)
    import opdock.nn.attention
    import opdock.nn.layers  # noqa: F401 - both register the op classes
    from opdock.cli import render
    from opdock.explain import explain

    report = explain(args.op, shape=shape, dtype=dtype, config=config)
    if args.json:
        render.as_json(report.to_dict())
    else:
        _print(report)
    return 0


def _print(report: Report) -> None:
    from opdock.cli import render

    render.line(f"Platform: {report.platform}, because: {report.platform_reason}")
    render.line(f"Switches: {', '.join(report.custom_ops)}")
    render.line()
    rows = [(c.name, c.distribution, c.version, c.verdict, c.reason) for c in report.candidates]
    render.table(("name", "distribution", "version", "verdict", "reason"), rows, title="Platform plugins")
    layers = [(c.op, c.built, _method(c), c.reason, c.source) for c in report.classes]
    render.table(("op", "class", "method", "reason", "registered at"), layers, title="Layers")
    verdicts = [
        (op.op if n == 0 else "", v.provider, "chosen" if v.chosen else "", v.reason, op.sources[v.provider])
        for op in report.ops
        for n, v in enumerate(op.verdicts)
    ]
    render.table(("IR op", "provider", "", "reason", "defined at"), verdicts, title="IR ops")
    for op in report.ops[:1] if len(report.ops) == 1 else ():
        render.line(f"Arguments: {op.arguments or op.problem}")
        render.line(f"Priority: {', '.join(op.priority)}")


def _method(row: ClassRow) -> str:
    return row.runs if row.method in (None, row.runs) else f"{row.method} -> {row.runs}"
