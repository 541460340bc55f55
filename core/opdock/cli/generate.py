"""``opdock generate``: let a model continue a text, and show what served each op."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from opdock.cli import options

if TYPE_CHECKING:
    from opdock.nn.loading import LoadedModel
    from opdock.nn.report import Recording

INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("model", metavar="MODEL", help="a Hugging Face folder, a .gguf file, or smollm2")
    parser.add_argument("-p", "--prompt", required=True, metavar="TEXT", help="what to say to the model")
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N", help="the most tokens to make (128)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 takes the likeliest token (0)")
    parser.add_argument("--top-k", type=int, default=0, help="sample among the k likeliest; 0: all")
    parser.add_argument("--top-p", type=float, default=1.0, help="sample among the likeliest that sum to p")
    parser.add_argument("--seed", type=int, default=None, help="makes sampling repeatable")
    parser.add_argument("--dtype", default=None, help="float32, bfloat16, ...; the checkpoint's without it")
    parser.add_argument("--system", default=None, metavar="TEXT", help="a system message, for chat models")
    parser.add_argument("--raw", action="store_true", help="continue the text as it is, without the chat template")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options.add_config(parser)


def run(args: argparse.Namespace) -> int:
    """Load, generate, report."""
    config = options.config_of(args)
    import opdock
    from opdock.cli import render
    from opdock.config import CompilationMode
    from opdock.errors import ConfigError
    from opdock.nn import report
    from opdock.nn.generation import generate
    from opdock.nn.loading import load_model
    from opdock.nn.sampling import SamplingParams
    from opdock.platforms import current

    if config.compilation_config.mode not in (None, CompilationMode.NONE):
        raise ConfigError(
            "opdock generate runs models eagerly.",
            why=f"mode={config.compilation_config.mode!r} was given.",
            remedy='leave "mode" out, or set it to 0.',
        )
    sampling = SamplingParams(temperature=args.temperature, top_k=args.top_k, top_p=args.top_p, seed=args.seed)
    with opdock.set_current_config(config):
        with _progress() as progress:
            loaded = load_model(args.model, dtype=args.dtype, progress=progress)
        tokens = _encode(loaded, args)
        made = generate(
            loaded.model, tokens, sampling, max_tokens=args.max_tokens, stop_tokens=loaded.config.eos_token_ids
        )
        text: list[str] = []
        with report.recording(loaded.model) as recording:
            start = time.perf_counter()
            interrupted = _stream(loaded, made, text, quiet=args.json)
            seconds = time.perf_counter() - start
        platform = opdock.current_platform
    selection = current.chosen_selection()
    told = _told(text, made, seconds, recording, platform.device_name, selection.reason if selection else "")
    if args.json:
        render.as_json(told | {"interrupted": interrupted})
    else:
        _print(told)
    return INTERRUPTED if interrupted else 0


def _encode(loaded: LoadedModel, args: argparse.Namespace) -> list[int]:
    if args.raw or not loaded.tokenizer.chat_template:
        return loaded.tokenizer.encode(args.prompt)
    system = [{"role": "system", "content": args.system}] if args.system is not None else []
    return loaded.tokenizer.encode_chat([*system, {"role": "user", "content": args.prompt}])


def _stream(loaded: LoadedModel, made: Any, text: list[str], *, quiet: bool) -> bool:
    """Write the text as it comes and collect it; return whether the user stopped it."""
    decoder = loaded.tokenizer.stream()

    def put(piece: str) -> None:
        text.append(piece)
        if not quiet and piece:
            sys.stdout.write(_printable(piece))
            sys.stdout.flush()

    interrupted = False
    try:
        for token in made:
            put(decoder.push(token))
        put(decoder.flush())
    except KeyboardInterrupt:
        interrupted = True
    if not quiet:
        sys.stdout.write("\n")
        sys.stdout.flush()
    return interrupted


def _printable(piece: str) -> str:
    from opdock.cli.render import escape

    return "\t".join(escape(part) for part in piece.split("\t"))


def _told(
    text: list[str], made: Any, seconds: float, recording: Recording, platform: str, reason: str
) -> dict[str, Any]:
    rows = [
        {"level": r.level, "op": r.op, "served_by": r.served_by, "method": r.method, "calls": r.calls}
        for r in recording.rows()
    ]
    return {
        "schema": "opdock.generate/1",
        "text": "".join(text),
        "prompt_tokens": made.prompt_tokens,
        "new_tokens": made.new_tokens,
        "finish_reason": made.finish_reason,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(made.new_tokens / seconds, 2) if seconds else 0.0,
        "platform": platform,
        "platform_reason": reason,
        "served": rows,
    }


def _print(told: dict[str, Any]) -> None:
    from opdock.cli import render

    render.line()
    render.line(f"Platform: {told['platform']}, because: {told['platform_reason']}")
    layers = [r for r in told["served"] if r["level"] == "layer"]
    providers = [r for r in told["served"] if r["level"] == "ir"]
    rows = [(r["op"], r["served_by"], r["method"], r["calls"]) for r in layers]
    rows += [(r["op"], "IR op", r["served_by"], r["calls"]) for r in providers]
    render.table(("op", "class", "method or provider", "calls"), rows)
    render.line(
        f"{told['prompt_tokens']} prompt tokens, {told['new_tokens']} new ones in {told['seconds']} s "
        f"({told['tokens_per_second']} tokens/s, counting included), ended by: {told['finish_reason']}",
        file=sys.stderr,
    )


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """Yield what shows a progress bar on stderr while weights load; None where nobody watches."""
    if not sys.stderr.isatty():
        yield None
        return
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield _plain_bar
        sys.stderr.write("\r\x1b[K")
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("loading weights", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _plain_bar(done: int, total: int) -> None:
    filled = int(40 * done / max(total, 1))
    sys.stderr.write(f"\rloading weights [{'#' * filled:40}] {done * 100 // max(total, 1)} %")
    sys.stderr.flush()
