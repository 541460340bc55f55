"""``opdock trace``: the kernels, host and device time of each op in one step of a model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opdock.cli import options

if TYPE_CHECKING:
    from opdock.nn.models.config import ModelConfig
    from opdock.nn.trace import StepTrace, Trace
    from opdock.nn.trace_events import TraceRow

_LONGEST_NAME = 44


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("model", metavar="MODEL", help="a Hugging Face folder, a .gguf file, or smollm2")
    parser.add_argument("--tokens", type=int, default=16, metavar="N", help="length of the prompt (16)")
    parser.add_argument("--batch", type=int, default=1, metavar="B", help="number of sequences (1)")
    parser.add_argument("--dtype", metavar="DTYPE", help="float32, bfloat16, ...; the checkpoint's without it")
    parser.add_argument("--device", metavar="DEVICE", help="for example cuda:1; the platform's first without it")
    parser.add_argument("--chrome", metavar="FILE", help="write both steps as a Chrome trace, for a trace viewer")
    options.add_json(parser)
    options.add_config(parser)


def run(args: argparse.Namespace) -> int:
    """Load, run the steps, report. Everything that can be refused is refused before the weights are read."""
    config = options.config_of(args)
    import torch

    import opdock
    from opdock.cli import render
    from opdock.cli.generate import _device_of, _import_layers, _refuse_unknown_switches
    from opdock.cli.progress import loading_bar
    from opdock.errors import UnsupportedError
    from opdock.nn.loading import load_model
    from opdock.nn.trace import check_sizes, trace_model

    check_sizes(args.tokens, args.batch)
    chrome = _file(args.chrome)
    _import_layers()
    try:
        with opdock.set_current_config(config):
            _refuse_unknown_switches(config)
            _refuse_compiled(config.compilation_config.compiles)
            device = _device_of(args.device)

            def check(_tokenizer: Any, model: ModelConfig) -> None:
                check_sizes(args.tokens, args.batch, model)

            with loading_bar() as progress:
                loaded = load_model(args.model, dtype=args.dtype, device=device, progress=progress, check=check)
            found = trace_model(loaded.model, tokens=args.tokens, batch=args.batch, chrome=chrome)
    except (torch.OutOfMemoryError, MemoryError) as err:
        raise UnsupportedError(
            "The device has too little memory for this model and batch.",
            why=str(err).partition("\n")[0] or type(err).__name__,
            remedy="use a smaller dtype (--dtype bfloat16), fewer --tokens, a smaller --batch or a smaller model.",
        ) from err
    if args.json:
        render.as_json({**found.to_dict(), "model": str(loaded.path), "chrome": args.chrome})
    else:
        _print(found, loaded.path.name)
        if chrome is not None:
            render.line(f"Wrote {chrome}; a trace viewer opens it (chrome://tracing, Perfetto).")
    return 0


def _refuse_compiled(compiles: bool) -> None:  # noqa: FBT001 - one fact
    from opdock.errors import ConfigError

    if compiles:
        raise ConfigError(
            "A trace is about eager calls, and this configuration compiles.",
            why="In compiled code ops and layers are gone.",
            remedy="leave the mode out; opdock explain --compiled MODEL explains compiled code.",
        )


def _file(name: str | None) -> Path | None:
    """Return where the Chrome trace goes; ConfigError if nothing can be written there."""
    from opdock.errors import ConfigError

    if name is None:
        return None
    path = Path(name)
    if not name or path.is_dir() or not path.parent.is_dir():
        why = "It names no file." if not name or path.is_dir() else f"There is no folder {str(path.parent)!r}."
        raise ConfigError(f"--chrome {name!r} cannot be written.", why=why, remedy="--chrome trace.json")
    there = path.exists()
    if not there or path.is_file():  # no pipe, which the first to open it would use up
        try:
            path.open("a").close()
        except OSError as err:
            why = err.strerror or str(err)
            raise ConfigError(f"--chrome {name!r} cannot be written.", why=why, remedy="--chrome trace.json") from err
    if not there:
        path.unlink()
    return path


def _print(found: Trace, model: str) -> None:
    from opdock.cli import render

    render.line(f"{model} on {found.platform} ({found.device}), {found.dtype}, batch {found.batch}")
    for step in found.steps:
        render.line()
        what = f"Prompt of {found.tokens} tokens" if step.step == "prompt" else "One token"
        render.table(
            ("op", "class or provider", "method", "calls", found.counted, "host µs", "device µs", "most often"),
            [*map(_cells, step.rows), _total(step)],
            title=f"{what}: host {step.host_us:,.0f} µs, until done {step.wall_us:,.0f} µs, without the profiler",
        )
        _print_answer(step)
        _print_timeline(step)
    if found.note:
        render.line(found.note)
    render.line(
        "What is inside another op of the table counts there alone. Host times of ops are under the profiler, "
        "which adds some microseconds to each op."
    )


def _print_answer(step: StepTrace) -> None:
    """Say in a line which provider ran the IR ops, so that nobody has to add up the table."""
    from opdock.cli import render

    calls: dict[str, int] = {}
    ops: dict[str, list[str]] = {}
    for row in step.rows:
        if row.key.level == "ir":
            calls[row.key.served_by] = calls.get(row.key.served_by, 0) + row.calls
            ops.setdefault(row.key.served_by, []).append(row.key.op)
    total = sum(calls.values())
    for provider, count in sorted(calls.items(), key=lambda each: -each[1]):
        render.line(f"Provider {provider} ran {count} of {total} calls of IR ops: {', '.join(ops[provider])}")


def _cells(row: TraceRow) -> tuple[object, ...]:
    key = row.key
    name = {"ir": key.op, "layer": key.op, "outside": "(outside of ops)"}[key.level]
    served = f"IR op: {key.served_by}" if key.level == "ir" else key.served_by.rpartition(".")[2]
    device = "" if row.device_us is None else f"{row.device_us:,.1f}"
    kernel = max(row.kernel_names, key=lambda name: row.kernel_names[name], default="")
    if len(kernel) > _LONGEST_NAME:
        kernel = kernel[: _LONGEST_NAME - 1] + "…"
    return name, served, key.method, row.calls or "", row.kernels, f"{row.host_us:,.0f}", device, kernel


def _total(step: StepTrace) -> tuple[object, ...]:
    total = step.to_dict()["total"]
    device = "" if total["device_us"] is None else f"{total['device_us']:,.1f}"
    return "total", "", "", "", total["kernels"], f"{total['host_us']:,.0f}", device, ""


def _print_timeline(step: StepTrace) -> None:
    from opdock.cli import render

    line = step.timeline
    if line is None or not line.span_us:
        return
    idle = line.span_us - line.busy_us
    render.line(
        f"Device: busy for {line.busy_us:,.1f} µs, {100 * line.busy_us / step.wall_us:.0f} % of the step without the "
        f"profiler. With it: {line.gaps} gaps of together {idle:,.1f} µs, the longest:"
    )
    for gap in line.longest:
        where = f", in {gap.op}" if gap.op else ""
        render.line(f"  {gap.us:,.1f} µs before {gap.before[:_LONGEST_NAME]}{where}")
