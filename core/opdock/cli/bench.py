"""``opdock bench``: how fast each provider of an IR op is, beside native and beside a copy of as many bytes."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from opdock.cli import options
from opdock.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from opdock.ir import IrOp
    from opdock.testing.timing.result import Point, ProviderResult, Result, Times

SECONDS, MOST_SECONDS = 0.2, 3600.0
INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("op", nargs="*", metavar="OP", help="IR ops; all without it")
    parser.add_argument("--tokens", metavar="N,N", help="rows of the activation (1,16,256, and 4096 on accelerators)")
    parser.add_argument("--hidden", metavar="N,N", help="lengths of a row (1024,4096)")
    parser.add_argument("--dtype", metavar="DTYPE", help="of the activation; the platform's first without it")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, metavar="S", help=f"for each provider at each size ({SECONDS})"
    )
    parser.add_argument("--out", metavar="FOLDER", help="write bench.json and bench.png there")
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, print and write; Ctrl-C ends the measuring, and what was measured is printed and written."""
    seconds = _seconds_of(args.seconds)
    tokens, hidden = (_sizes_of(n, getattr(args, n)) for n in ("tokens", "hidden"))
    dtype = options.dtype_of(args.dtype)
    folder = _folder_of(args.out)
    import opdock
    from opdock import context

    with opdock.set_current_config():  # activates the platform: its providers are registered then
        platform = context.platform()
        ops = _ops_of(args.op)
        from opdock.testing.timing.grid import default_grid

        device = _device_of(platform.device_type)
        grid = default_grid(device, dtype or platform.supported_dtypes[0], tokens=tokens, hidden=hidden)
        result = _measure(ops, grid, device, seconds, _command(args), platform.device_name)
    if folder is not None:
        _write(result, folder)
    if args.json:
        from opdock.cli import render

        render.as_json(result.to_dict())
    else:
        _print(result)
    return INTERRUPTED if result.interrupted else 0


def _sizes_of(option: str, text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and part.isascii() and 0 < int(part) < 2**31 for part in parts):
        raise ConfigError(
            f"--{option} {text!r} is not a list of sizes.",
            why=f"Each is a whole number from 1 to {2**31 - 1}.",
            remedy=f"--{option} {'1,16,256' if option == 'tokens' else '1024,4096'}",
        )
    return [int(part) for part in parts]


def _seconds_of(value: float) -> float:
    if not 0 < value <= MOST_SECONDS:
        raise ConfigError(f"--seconds {value} is not possible.", remedy=f"--seconds {SECONDS}")
    return value


def _folder_of(name: str | None) -> Path | None:
    """Return the folder, made now: what cannot be written is refused before long work."""
    if name is None:
        return None
    from pathlib import Path

    folder = Path(name)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _ops_of(names: list[str]) -> list[IrOp]:
    from opdock import ir
    from opdock.errors import UnknownNameError, suggest

    for name in names:
        if name not in ir.registry:
            raise UnknownNameError(f"No IR op is called {name!r}.", remedy=suggest(name, ir.registry))
    return [ir.registry[name] for name in dict.fromkeys(names or sorted(ir.registry))]


def _device_of(kind: str) -> torch.device:
    import torch

    if kind in ("", "cpu"):
        return torch.device("cpu")
    module = getattr(torch, kind, None)
    current = getattr(module, "current_device", None)
    return torch.device(kind, current() if current is not None else 0)


def _command(args: argparse.Namespace) -> str:
    """Return the command as far as it changes a figure; folders stay out of results."""
    import shlex

    from opdock import env

    words = ["opdock", "bench", *args.op]
    for option in ("tokens", "hidden", "dtype"):
        if getattr(args, option) is not None:
            words += [f"--{option}", getattr(args, option)]
    if args.seconds != SECONDS:
        words += ["--seconds", f"{args.seconds:g}"]
    forced = env.forced_platform()
    return (f"OPDOCK_PLATFORM={shlex.quote(forced)} " if forced else "") + shlex.join(words)


def _measure(ops: list[IrOp], grid: Any, device: torch.device, seconds: float, command: str, platform: str) -> Result:
    from opdock.testing.timing import bandwidth
    from opdock.testing.timing.circumstances import circumstances
    from opdock.testing.timing.clock import clock_for
    from opdock.testing.timing.result import Result
    from opdock.testing.timing.run import ROUNDS, measure, measure_copy

    clock = clock_for(device)
    how = (
        f"{seconds:g} s for each provider at each size, in {ROUNDS} rounds with all providers in turn; median and "
        "interquartile range (IQR) over the samples."
    )
    memory = (
        "Bandwidth: bytes of arguments and results, each once, over the median time; the share is of the best copy of "
        "this run. A copy of N bytes reads N/2 and writes N/2."
    )
    method = clock.method, how, memory
    points: list[Point] = []
    size, copied, interrupted = bandwidth.large_size(device), None, False
    total = sum(len(grid) if op.has_input_generator else 1 for op in ops)
    try:
        size, copied = measure_copy(size, device=device, clock=clock)
        for point in measure(ops, grid, device=device, clock=clock, seconds=seconds):
            points.append(point)
            _progress(len(points), total, point)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        _progress_ends()
    facts = {**circumstances(ops, device, command), "platform": platform}
    return Result(facts, method, size, copied, tuple(points), interrupted)


def _progress(done: int, total: int, point: Point) -> None:
    if sys.stderr.isatty():
        from opdock.cli import render

        sys.stderr.write(f"\r\x1b[K{done}/{total} {render.escape(point.op)} {point.tokens}x{point.hidden}")
        sys.stderr.flush()


def _progress_ends() -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def _write(result: Result, folder: Path) -> None:
    from opdock.cli import render
    from opdock.testing.timing import plot

    text = json.dumps(result.to_dict(), indent=1, default=str)
    (folder / "bench.json").write_text(text + "\n", encoding="utf-8")
    try:
        if not plot.draw(result, folder / "bench.png"):
            render.line("No picture was written: nothing was timed.", file=sys.stderr)
    except plot.NoPlotError as err:
        render.line(f"{err.what} {err.remedy}", file=sys.stderr)


def _print(result: Result) -> None:
    from opdock.cli import render
    from opdock.testing.timing import units

    facts, best = result.circumstances, result.bandwidth()
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    render.line(f"{facts['date']}  {facts['platform']}: {facts['machine']}, {facts['threads']} thread(s)")
    render.line(versions)
    render.line(f"$ {facts['command']}")
    for sentence in result.method:
        render.line(sentence)
    if result.large_copy_time is not None and best is not None:
        large = result.large_copy / result.large_copy_time.median
        render.line(
            f"Copy of {units.size(result.large_copy)}: {units.rate(large)}. Best copy of this run, 100 %: "
            f"{units.rate(best.bytes_per_second)} at {units.size(best.bytes)}."
        )
    render.line()
    on_host = any(p.host_time for q in result.points for p in q.providers)
    host = ("host time",) if on_host else ()
    head = ("op", "tokens", "hidden", "bytes", "provider", "median", "IQR", "vs native", "of best copy", *host, "note")
    render.table(head, [row for point in result.points for row in _rows(result, point, on_host=on_host)])
    render.table(("op", "provider", "", "why", "at tokens x hidden"), _reasons(result), title="Not timed")
    for sentence in _untimed(result):
        render.line(sentence)
    if result.interrupted:
        render.line("Interrupted: what is above was measured to the end.", file=sys.stderr)


def _rows(result: Result, point: Point, *, on_host: bool) -> list[tuple[object, ...]]:
    from opdock.testing.timing import units

    found: list[tuple[object, ...]] = []
    size: tuple[object, ...] = (point.op, point.tokens, point.hidden, units.size(point.bytes))
    for provider in point.providers:
        shown = size if not found else ("", "", "", "")
        if provider.time is None:
            found.append((*shown, provider.provider, provider.status, "", "", "", *([""] if on_host else []), ""))
            continue
        host = (units.seconds(provider.host_time.median) if provider.host_time else "",) if on_host else ()
        note = "writes in place" if provider.inplace else ""
        found.append((*shown, provider.provider, *_figures(result, point, provider, provider.time), *host, note))
    return found


def _figures(result: Result, point: Point, provider: ProviderResult, time: Times) -> tuple[str, ...]:
    from opdock.testing.timing import units

    native, share = point.native(), result.fraction(point, time)
    faster = "" if native is None or provider.provider == "native" else f"{native.median / time.median:.2f}x"
    return (
        units.seconds(time.median),
        f"{100 * time.spread:.0f} %",
        faster,
        "" if share is None else f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %",
    )


def _reasons(result: Result) -> list[tuple[str, str, str, str, str]]:
    """Return a row for each op, provider and status, with the first reason and all sizes."""
    found: dict[tuple[str, str, str], tuple[str, list[str]]] = {}
    for point in result.points:
        for p in point.providers:
            if p.time is None:
                found.setdefault((point.op, p.provider, p.status), (p.reason, []))[1].append(
                    f"{point.tokens}x{point.hidden}"
                )
    return [(*key, reason, ", ".join(sizes)) for key, (reason, sizes) in found.items()]


def _untimed(result: Result) -> list[str]:
    """Return a line for each op and problem, and for each op that has native alone."""
    problems = dict.fromkeys((p.op, p.problem) for p in result.points if p.problem)
    lines = [f"{op}: not measured: {problem}" for op, problem in problems]
    alone = [p.op for p in result.points if {q.provider for q in p.providers} == {"native"}]
    if alone:
        lines.append(f"Only native is registered for: {', '.join(dict.fromkeys(alone))}.")
    return lines
