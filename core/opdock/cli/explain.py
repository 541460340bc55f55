"""``opdock explain``: which class, method and provider serves an op, and why not the others."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import TYPE_CHECKING

from opdock.cli import coverage, options
from opdock.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from opdock.compile import GraphReport, NodeChoice
    from opdock.config import OpdockConfig
    from opdock.explain import ClassRow, Report
    from opdock.nn.choices import SelectorRow

TOKENS = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("op", nargs="?", metavar="OP", help="an op class or IR op; all without it")
    parser.add_argument("--shape", metavar="TOKENSxHIDDEN", help="of the activation, for example 1x4096")
    parser.add_argument("--dtype", metavar="DTYPE", help="of the activation; the platform's first without it")
    parser.add_argument("--compiled", metavar="MODEL", help="what compiled mode does with a model, weights not needed")
    parser.add_argument("--tokens", type=int, metavar="N", help=f"length of a model's sequence or prompt ({TOKENS})")
    coverage.add_arguments(parser)
    options.add_json(parser)
    options.add_config(parser)


def run(args: argparse.Namespace) -> int:
    """Print the report."""
    config = options.config_of(args)
    coverage.refuse_combinations(args)
    if args.compiled is not None:
        return _run_compiled(args, config)
    if args.coverage is not None:
        return coverage.run(args, config, TOKENS if args.tokens is None else args.tokens)
    if args.tokens is not None:
        raise ConfigError(
            "--tokens belongs to --compiled and --coverage.", remedy="--shape TOKENSxHIDDEN gives an op's input."
        )
    shape, dtype = options.shape_of(args.shape), options.dtype_of(args.dtype)
    from opdock.cli import render
    from opdock.explain import explain
    from opdock.nn import op_classes

    op_classes.register_all()
    report = explain(args.op, shape=shape, dtype=dtype, config=config)
    if args.html is not None:
        # a class may be named by its own name; the report has the op's
        op = None if args.op is None else next((row.op for row in report.ops), args.op)
        coverage.write_page(args, config, op=op)
    choices = _choices(args.op, config, dtype)
    if args.json:
        render.as_json({**report.to_dict(), "selectors": [row.to_dict() for row in choices]})
    else:
        _print(report)
        rows = [(c.axis, c.layer, c.backend, "chosen" if c.chosen else "", c.reason) for c in choices]
        if rows:
            render.table(("selector", "for a layer", "backend", "", "reason"), rows, title="Selectors")
    return 0


def _choices(op: str | None, config: OpdockConfig, dtype: torch.dtype | None) -> list[SelectorRow]:
    from opdock import set_current_config
    from opdock.nn.choices import AXES, selector_rows

    axis = "linear" if op is not None and op.endswith("_linear") else op
    if axis is not None and axis not in AXES:
        return []
    with set_current_config(config):
        return selector_rows(axis, dtype=dtype)


def _run_compiled(args: argparse.Namespace, config: OpdockConfig) -> int:
    from opdock import set_current_config
    from opdock.cli import render
    from opdock.config import CompilationMode
    from opdock.nn.compiled import explain_compiled

    if args.op is not None or args.shape is not None:
        raise ConfigError(
            "--compiled is about a whole model.", why="An op or a shape was given too.", remedy="leave them out."
        )
    tokens = TOKENS if args.tokens is None else args.tokens
    if tokens < 1:
        raise ConfigError(f"--tokens {tokens} is not possible.", remedy="use a number from 1.")
    if config.compilation_config.mode is CompilationMode.NONE:
        raise ConfigError("--compiled explains a compiled mode, and mode 0 does not compile.", remedy="leave it out.")
    if config.compilation_config.mode is None:
        config.compilation_config.mode = CompilationMode.OPDOCK_COMPILE
    with set_current_config(config):
        report = explain_compiled(args.compiled, num_tokens=tokens, dtype=args.dtype)
    if args.json:
        render.as_json(report.to_dict())
    else:
        print_compiled(report, ", ".join(config.compilation_config.custom_ops))
    return 0


def print_compiled(report: GraphReport, switches: str) -> None:
    """Print what the passes did."""
    from opdock.cli import render

    render.line(f"Switches of op classes: {switches}")
    kinds = Counter(
        (c.op, c.provider, c.made_by, next(v.reason for v in c.verdicts if v.chosen), _losers(c))
        for c in report.choices
    )
    rows = [(op, provider, n, made_by, reason, losers) for (op, provider, made_by, reason, losers), n in kinds.items()]
    render.table(("IR op", "provider", "calls", "made by", "because", "not"), rows, title="Lowered")
    fusions = [(name, n, "") for name, n in report.fused.items()]
    fusions += [(name, 0, why) for name, why in report.declined.items() if name not in report.fused]
    if fusions:
        render.table(("fusion", "applied", "last one left out because"), fusions, title="Fusions")
    render.line(
        f"{len(report.choices)} calls of {report.bodies} kinds; {report.clones_removed} clones removed, "
        f"{report.clones_left} left"
    )


def _losers(choice: NodeChoice) -> str:
    return "; ".join(f"{v.provider}: {v.reason}" for v in choice.verdicts if not v.chosen)


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
