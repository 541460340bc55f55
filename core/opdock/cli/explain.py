"""``opdock explain``: which class, method and provider serves an op, and why not the others."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from opdock.cli import options

if TYPE_CHECKING:
    from opdock.explain import Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("op", nargs="?", metavar="OP", help="an op class or IR op; all without it")
    parser.add_argument("--shape", metavar="TOKENSxHIDDEN", help="of the activation, for example 1x4096")
    parser.add_argument("--dtype", help="of the activation; the platform's first without it")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options.add_config(parser)


def run(args: argparse.Namespace) -> int:
    """Print the report."""
    config = options.config_of(args)
    shape, dtype = options.shape_of(args.shape), options.dtype_of(args.dtype)
    import opdock.nn.layers  # noqa: F401 - registers the op classes
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
    rows = [(c.op, c.built, c.method or "forward", c.reason, c.source) for c in report.classes]
    render.table(("op", "class", "method", "reason", "registered at"), rows, title="Layers")
    verdicts = [
        (op.op if n == 0 else "", v.provider, "chosen" if v.chosen else "", v.reason)
        for op in report.ops
        for n, v in enumerate(op.verdicts)
    ]
    render.table(("IR op", "provider", "", "reason"), verdicts, title="IR ops")
    for op in report.ops[:1] if len(report.ops) == 1 else ():
        render.line(f"Arguments: {op.arguments}")
        render.line(f"Priority: {', '.join(op.priority)}")
