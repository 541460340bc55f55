"""The command line. Each command is a module with ``add_arguments`` and ``run``, light until it runs.

Exit codes: 0 fine; 1 an error, told on stderr; 2 wrong usage; 3 (doctor) no usable platform; 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module

COMMANDS = {
    "doctor": "which platform this process gets, why, and what to type next",
    "plugins": "the installed plugins, from their metadata alone",
    "check": "a plugin package against the contract, without running it",
    "explain": "which class, method and provider serves an op, and why not the others",
    "generate": "let a model continue a text, and show what served each op",
    "trace": "what each op of a model launches in one step: kernels, host and device time",
    "bench": "how fast each provider of an IR op is, beside native and beside the memory",
    "new": "write a platform package that works: installed, chosen, tested",
    "completion": "a script that completes the commands and options in a shell",
}
ERROR, USAGE, INTERRUPTED = 1, 2, 130


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of every command."""
    parser = argparse.ArgumentParser(prog="opdock", description="Operators dock onto hardware.", allow_abbrev=False)
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, text in COMMANDS.items():
        sub = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False)
        import_module(f"opdock.cli.{name}").add_arguments(sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; never raises for what a user, a plugin or a file did.

    Args:
        argv: the words after ``opdock``; None takes those of the process.
    """
    from opdock.cli import render
    from opdock.errors import OpdockError

    for stream in (sys.stdout, sys.stderr):  # a terminal in another encoding must not end a text half-way
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with _logging():
            code = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except OpdockError as err:
        render.block(f"{type(err).__name__}: {err}", file=sys.stderr)
        return ERROR
    except KeyboardInterrupt:
        render.line("Interrupted.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the pipe has had enough: nothing more is written, at exit either
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as err:  # a file that cannot be read, a full disk
        render.block(f"{type(err).__name__}: {err}", file=sys.stderr)
        return ERROR
    return code


def _run(argv: list[str]) -> int:
    from opdock.cli import options, render

    words, dotted = options.take_dotted(argv)
    parser = make_parser()
    try:
        _refuse_unknown_command(parser, words)
        args = parser.parse_args(words)
        args.dotted = dotted
        if dotted and not hasattr(args, "ir_op_priority"):
            parser.error(f"{options.PRIORITY}.OP is an option of explain, generate and trace")
    except SystemExit as stop:  # argparse has told what is wrong, or has shown the help
        return int(stop.code or 0)
    if args.version:
        from opdock import __version__

        render.line(f"opdock {__version__}")
        return 0
    if args.command is None:
        parser.print_help(sys.stderr)
        return USAGE
    code: int = import_module(f"opdock.cli.{args.command}").run(args)
    return code


def _refuse_unknown_command(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    from opdock.errors import suggest

    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        parser.error(f"there is no command {words[0]!a}. {suggest(words[0], COMMANDS)}")


@contextlib.contextmanager
def _logging() -> Iterator[None]:
    """Show the library's warnings on stderr while a command runs."""
    import logging

    from opdock.cli import render

    logger, handler = logging.getLogger("opdock"), render.LogHandler(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
