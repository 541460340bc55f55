"""The parts of ``opdock explain`` about a model's coverage and the heat map."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from opdock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opdock.config import OpdockConfig
    from opdock.explain.heatmap import HeatRow
    from opdock.explain.heatmap_page import Section
    from opdock.nn.coverage import Coverage, ModelOp


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--coverage", metavar="MODEL", help="which of a model's ops native serves, and why; weights not needed"
    )
    parser.add_argument(
        "--require-coverage", type=float, metavar="SHARE", help="with --coverage: exit 1 below this share, 0 to 1"
    )
    parser.add_argument("--html", metavar="FILE", help="write a map of all IR ops and providers as one page")


def refuse_combinations(args: argparse.Namespace) -> None:
    """Raise ConfigError for options that do not go together, or a share that is not possible."""
    share = args.require_coverage
    if share is not None and args.coverage is None:
        raise ConfigError("--require-coverage needs a model.", remedy=f"--coverage MODEL --require-coverage {share:g}")
    if share is not None and not (math.isfinite(share) and 0 <= share <= 1):
        raise ConfigError(
            f"--require-coverage {share:g} is not a share.", why="It is from 0 to 1.", remedy="--require-coverage 0.9"
        )
    if args.html is not None and args.compiled is not None:
        raise ConfigError("--html is about eager calls, --compiled is not.", remedy="leave one of them out.")
    if args.html == "":
        raise ConfigError("--html names no file.", remedy="--html map.html")
    if args.coverage is None:
        return
    given = [
        name for name, value in (("an op", args.op), ("--shape", args.shape), ("--compiled", args.compiled)) if value
    ]
    if given:
        raise ConfigError(
            "--coverage is about a whole model in eager mode.",
            why=f"Given too: {', '.join(given)}.",
            remedy="leave it out.",
        )


def run(args: argparse.Namespace, config: OpdockConfig, tokens: int) -> int:
    """Print the coverage of a model, and end with an error if it is below what is required."""
    import opdock
    from opdock.cli import render
    from opdock.nn.coverage import model_coverage

    if tokens < 1:
        raise ConfigError(f"--tokens {tokens} is not possible.", remedy="use a number from 1.")
    if config.compilation_config.compiles:
        raise ConfigError(
            "--coverage is about eager calls, and this configuration compiles.",
            remedy="leave the mode out; --compiled MODEL explains compiled code.",
        )
    with opdock.set_current_config(config):
        found = model_coverage(args.coverage, num_tokens=tokens, dtype=args.dtype)
    if args.html is not None:
        write_page(args, config, model=found)
    if args.json:
        render.as_json(found.to_dict())
    else:
        _print(found)
    if args.require_coverage is not None:
        found.require(args.require_coverage)
    return 0


def write_page(
    args: argparse.Namespace, config: OpdockConfig, *, op: str | None = None, model: Coverage | None = None
) -> None:
    """Write the heat map of all IR ops, or of ``op``, with the model's marked.

    Raises: ConfigError if ``op`` is an op class without an IR op.
    """
    from opdock import __version__, set_current_config
    from opdock.cli import options, render
    from opdock.context import platform
    from opdock.explain.heatmap import heat_rows
    from opdock.explain.heatmap_page import page
    from opdock.platforms import current

    rows = heat_rows(
        op,
        shape=options.shape_of(args.shape),
        dtype=options.dtype_of(args.dtype),
        config=config,
        model={row.op: row for row in model.rows} if model is not None else None,
    )
    if not rows:
        raise ConfigError(
            f"--html is a map of IR ops and providers, and {op!r} is an op class alone.", remedy="leave the op out."
        )
    with set_current_config(config):
        name, selection = platform().device_name, current.chosen_selection()
    facts = [("Platform", name), ("Why", selection.reason if selection else ""), ("opdock", __version__)]
    title = f"IR ops on {name}"
    if model is not None:
        title = f"{model.model} on {name}: {_summary(model)}"
        facts += [("Model", model.model), ("Prompt", f"{model.num_tokens} tokens"), ("Dtype", model.dtype)]
    sections = [_section(model)] if model is not None else []
    Path(args.html).write_text(page(rows, title=title, facts=facts, sections=sections), encoding="utf-8")
    if not args.json:
        render.line(f"Wrote {args.html}: {_counts(rows)}")


def _counts(rows: Sequence[HeatRow]) -> str:
    return f"{len(rows)} IR ops, {len({c.provider for r in rows for c in r.cells})} providers."


def _summary(found: Coverage) -> str:
    return f"{found.covered} of {len(found.ops)} ops served by other than native, {100 * found.share:.3g} %"


HEAD = ("op", "level", "served by", "calls, prompt", "calls, one token", "because")


def _section(found: Coverage) -> Section:
    from opdock.explain.heatmap_page import Section

    text = "An op is covered if none of its calls is served by native, neither for the prompt nor for one more token."
    rows = [row for op in found.ops for row in rows_of(op)]
    marked = [s.native for op in found.ops for s in op.served]
    return Section("Ops of the model", text, HEAD, rows, marked)


def rows_of(op: ModelOp) -> list[tuple[object, ...]]:
    """Return a row for each thing that serves an op."""
    level = {"ir": "IR op", "layer": "layer"}[op.level]
    return [
        (
            op.op,
            level,
            _by(s.served_by, s.method, s.distribution),
            s.prompt_calls,
            s.token_calls,
            "; ".join((s.reason, *s.losers)),
        )
        for s in op.served
    ]


def _by(served_by: str, method: str, distribution: str) -> str:
    name = f"{served_by.rpartition('.')[2]}.{method}" if method else served_by
    return f"{name} ({distribution})" if distribution else name


def _print(found: Coverage) -> None:
    from opdock.cli import render

    render.line(f"Platform: {found.platform}; {found.model}, {found.dtype}, a prompt of {found.num_tokens} tokens")
    covered = [row for op in found.ops if op.covered for row in rows_of(op)]
    render.table(HEAD, covered, title="Served by other than native")
    native = [row for op in found.ops if not op.covered for row in rows_of(op)]
    render.table(HEAD, native, title="Served by native")
    (ir, irs), (layers, all_layers) = found.at_level("ir"), found.at_level("layer")
    render.line(f"Coverage: {_summary(found)} (IR ops {ir} of {irs}, layers {layers} of {all_layers})")
