"""``opdock generate``: let a model continue a text, and show what served each op."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opdock.cli import options

if TYPE_CHECKING:
    import torch

    from opdock.config import OpdockConfig
    from opdock.nn.batch import ReplayedGeneration
    from opdock.nn.generation import Generation
    from opdock.nn.loading import LoadedModel
    from opdock.nn.models.config import ModelConfig
    from opdock.nn.models.tokenizer import Tokenizer
    from opdock.nn.report import Recording

SCHEMA = "opdock.generate/1"
MODES = ("eager", "compiled", "graphs")
INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("model", metavar="MODEL", help="a Hugging Face folder, a .gguf file, or smollm2")
    parser.add_argument("-p", "--prompt", required=True, metavar="TEXT", help="what to say to the model")
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N", help="the most tokens to make (128)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 takes the likeliest token (0)")
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="sample among the K likeliest; 0: all (0)")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="among the likeliest that sum to P (1)")
    parser.add_argument("--seed", type=int, default=None, metavar="N", help="makes sampling repeatable")
    parser.add_argument("--dtype", metavar="DTYPE", help="float32, bfloat16, ...; the checkpoint's without it")
    parser.add_argument("--quantization", metavar="METHOD", help="quantise plain weights while loading: fp8, ...")
    parser.add_argument("--device", metavar="DEVICE", help="for example cuda:1; the platform's first without it")
    parser.add_argument(
        "--mode",
        choices=MODES,
        help="op by op; compiled; compiled, and each step a replayed graph of launches. The configuration's without it",
    )
    parser.add_argument("--system", metavar="TEXT", help="a system message, for chat models")
    chat = parser.add_mutually_exclusive_group()
    chat.add_argument("--chat", action="store_true", default=None, help="use the chat template; an error without one")
    chat.add_argument(
        "--no-chat", "--raw", dest="chat", action="store_false", help="continue the text as it is, no template"
    )
    options.add_json(parser)
    options.add_config(parser)


def run(args: argparse.Namespace) -> int:
    """Load, generate, report. Everything that can be refused is refused before the weights are read."""
    config = options.config_of(args)
    _put_mode(config, args.mode)
    import torch

    import opdock
    from opdock.errors import UnsupportedError
    from opdock.nn.sampling import SamplingParams

    sampling = SamplingParams(temperature=args.temperature, top_k=args.top_k, top_p=args.top_p, seed=args.seed)
    _import_layers()  # so that a misspelt switch is seen when the configuration is put in force
    try:
        with opdock.set_current_config(config):
            _refuse_unknown_switches(config)
            told, interrupted = _generate(args, sampling)
    except (torch.OutOfMemoryError, MemoryError) as err:
        raise UnsupportedError(
            "The device has too little memory for this model and prompt.",
            why=str(err).partition("\n")[0] or type(err).__name__,
            remedy="use a smaller dtype (--dtype bfloat16), fewer --max-tokens or a smaller model.",
        ) from err
    if args.json:
        from opdock.cli import render

        render.as_json(told)
    else:
        _print(told)
    return INTERRUPTED if interrupted else 0


def _put_mode(config: OpdockConfig, mode: str | None) -> None:
    """Let the configuration compile, or not, as ``--mode`` says; ConfigError if it says otherwise itself."""
    from opdock.config import CompilationMode
    from opdock.errors import ConfigError

    cc = config.compilation_config
    if mode is None:
        return
    wanted = CompilationMode.NONE if mode == "eager" else CompilationMode.OPDOCK_COMPILE
    if cc.mode is not None and (cc.mode is CompilationMode.NONE) != (wanted is CompilationMode.NONE):
        raise ConfigError(
            f"--mode {mode} and mode {int(cc.mode)} of --compilation-config contradict each other.",
            remedy="give one of the two.",
        )
    cc.mode = wanted if cc.mode is None else cc.mode


def _import_layers() -> None:
    from opdock.nn import op_classes

    op_classes.register_all()


def _refuse_unknown_switches(config: OpdockConfig) -> None:
    """Raise ConfigError for a switch of an op or fusion that does not exist; all of our models are registered now."""
    from opdock.errors import ConfigError, suggest
    from opdock.registry import op_registry

    for directive in config.compilation_config.custom_ops:
        if directive[0] in "+-" and directive[1:] not in op_registry:
            raise ConfigError(
                f"custom_ops has {directive!r}, but no op class is called {directive[1:]!r}.",
                remedy=suggest(directive[1:], op_registry),
            )
    if config.compilation_config.fusions:
        from opdock.compile.switches import fusions_in_force

        fusions_in_force(config.compilation_config.fusions)


def _generate(args: argparse.Namespace, sampling: Any) -> tuple[dict[str, Any], bool]:
    """Return what is told of the run, and whether the user stopped it."""
    import torch

    from opdock import context
    from opdock.cli.progress import loading_bar
    from opdock.nn import generation, report
    from opdock.nn.batch import ReplayedGeneration
    from opdock.nn.batch.capture import refuse_without_graphs
    from opdock.nn.loading import load_model
    from opdock.platforms import current

    tokens: list[int] = []

    def check(tokenizer: Tokenizer, config: ModelConfig) -> None:
        if args.mode == "graphs":
            refuse_without_graphs(device or torch.device(context.platform().device_type or "cpu"))
        tokens.extend(_encode(tokenizer, args))
        generation.check_request(tokens, config, args.max_tokens)

    device = _device_of(args.device)
    with loading_bar() as progress:
        loaded = load_model(
            args.model,
            dtype=args.dtype,
            device=device,
            progress=progress,
            check=check,
            quantization=args.quantization,
        )
    stop = loaded.config.eos_token_ids
    begin = ReplayedGeneration if args.mode == "graphs" else generation.generate
    made = begin(loaded.model, tokens, sampling, max_tokens=args.max_tokens, stop_tokens=stop)
    text: list[str] = []
    compiles = context.get_current_config().compilation_config.compiles
    with report.recording_compiled() if compiles else report.recording(loaded.model) as recording:
        start = time.perf_counter()
        interrupted = _stream(loaded, made, text.append, quiet=args.json)
        seconds = time.perf_counter() - start
    selection = current.chosen_selection()
    facts = {
        "schema": SCHEMA,
        "text": "".join(text),
        "prompt_tokens": made.prompt_tokens,
        "new_tokens": made.new_tokens,
        "finish_reason": made.finish_reason or "interrupted",
        "interrupted": interrupted,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(made.new_tokens / seconds, 2) if seconds else 0.0,
        "model": str(loaded.path),
        "dtype": str(next(loaded.model.parameters()).dtype).removeprefix("torch."),
        "compiled": compiles,
        "platform": context.platform().device_name,
        "platform_reason": selection.reason if selection else "",
        "served": _served(recording),
    }
    return facts, interrupted


def _device_of(name: str | None) -> torch.device | None:
    """Return the device that the user names; ConfigError if it is not there or not the platform's."""
    if name is None:
        return None
    import torch

    from opdock import context
    from opdock.errors import ConfigError

    kind, remedy = context.platform().device_type or "cpu", "leave --device out."
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"{name!r} is not a device.", remedy=f"--device {kind}") from None
    if device.type not in (kind, "cpu"):
        raise ConfigError(f"The platform {context.platform().device_name!r} has no device {name!r}.", remedy=remedy)
    count = 1 if device.type == "cpu" else torch.accelerator.device_count()
    if (device.index or 0) >= count:  # the index may be None, whatever its hint says
        raise ConfigError(f"There is no device {name!r}: {count} of {device.type!r} can be seen.", remedy=remedy)
    return device


def _encode(tokenizer: Tokenizer, args: argparse.Namespace) -> list[int]:
    from opdock.errors import ConfigError

    chat = bool(tokenizer.chat_template) if args.chat is None else args.chat
    if chat:
        system = [{"role": "system", "content": args.system}] if args.system is not None else []
        return tokenizer.encode_chat([*system, {"role": "user", "content": args.prompt}])
    if args.system is not None:
        raise ConfigError(
            "--system needs a chat template.",
            why="The model has none." if args.chat is None else "--no-chat leaves it out.",
            remedy="put the text into -p.",
        )
    return tokenizer.encode(args.prompt)


def _stream(
    loaded: LoadedModel, made: Generation | ReplayedGeneration, keep: Callable[[str], None], *, quiet: bool
) -> bool:
    """Write the text as it comes and keep it; return whether the user stopped it."""
    from opdock.cli.render import prose

    decoder = loaded.tokenizer.stream()

    def put(piece: str) -> None:
        keep(piece)
        if not quiet and piece:
            sys.stdout.write(prose(piece))
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


def _served(recording: Recording) -> list[dict[str, Any]]:
    return [
        {"level": r.level, "op": r.op, "served_by": r.served_by, "method": r.method, "calls": r.calls}
        for r in recording.rows()
    ]


def _print(told: dict[str, Any]) -> None:
    from opdock.cli import render

    render.line()
    render.line(f"Platform: {told['platform']}, because: {told['platform_reason']}")
    rows = [
        (r["op"], r["served_by"], r["method"], r["calls"])
        if r["level"] == "layer"
        else (r["op"], "IR op", r["served_by"], r["calls"])
        for r in told["served"]
    ]
    # compiled code has no calls to count, only places that were lowered
    render.table(("op", "class", "method or provider", "call sites" if told["compiled"] else "calls"), rows)
    render.line(
        f"{told['prompt_tokens']} prompt tokens, {told['new_tokens']} new ones in {told['seconds']} s "
        f"({told['tokens_per_second']} tokens/s, counting included), ended by: {told['finish_reason']}",
        file=sys.stderr,
    )
