"""The command line. Each command is a module with ``add_arguments`` and ``run``, imported when it is used.

Exit codes: 0 fine; 1 an error, told on stderr; 2 wrong usage; 3 (doctor) no usable platform; 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

COMMANDS = {
    "doctor": "which platform this process gets, why, and what to type next",
    "plugins": "the installed plugins, from their metadata alone",
    "explain": "which class, method and provider serves an op, and why not the others",
    "generate": "let a model continue a text, and show what served each op",
    "completion": "a script that completes the commands and options in a shell",
}


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of every command."""
    parser = argparse.ArgumentParser(prog="opdock", description="Operators dock onto hardware.")
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, text in COMMANDS.items():
        sub = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False)
        import_module(f"opdock.cli.{name}").add_arguments(sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    from opdock.cli import options, render
    from opdock.errors import OpdockError

    try:
        words, dotted = options.take_dotted(sys.argv[1:] if argv is None else argv)
        parser = make_parser()
        args = parser.parse_args(words)
        args.dotted = dotted
        if dotted and not hasattr(args, "ir_op_priority"):
            parser.error(f"{options.PRIORITY} is an option of explain and generate")
        if args.version:
            from opdock import __version__

            render.line(f"opdock {__version__}")
            return 0
        if args.command is None:
            parser.print_help()
            return 2
        code: int = import_module(f"opdock.cli.{args.command}").run(args)
        sys.stdout.flush()
    except OpdockError as err:
        render.line(f"{type(err).__name__}: {err}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the pipe has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code
