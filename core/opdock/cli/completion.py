"""``opdock completion SHELL``: a script made from the parsers."""

from __future__ import annotations

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help='for example: eval "$(opdock completion bash)"')


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    words = _words()
    sys.stdout.write({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](words))
    return 0


def _words() -> dict[str, list[str]]:
    """Return the options of each command."""
    from opdock.cli import make_parser

    sub = next(a for a in make_parser()._actions if isinstance(a, argparse._SubParsersAction))
    words = {}
    for name, parser in sub.choices.items():
        found = [o for a in parser._actions for o in a.option_strings if o.startswith("--")]
        words[name] = sorted({*found, *(c for a in parser._actions for c in a.choices or ())})
    return words


def _bash(words: dict[str, list[str]]) -> str:
    cases = "\n".join(f"    {name}) words='{' '.join(options)}' ;;" for name, options in words.items())
    return f"""_opdock() {{
  local words
  case "${{COMP_WORDS[1]}}" in
{cases}
    *) words='{" ".join(words)} --version --help' ;;
  esac
  [ "$COMP_CWORD" -gt 1 ] || words='{" ".join(words)} --version --help'
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _opdock opdock
"""


def _zsh(words: dict[str, list[str]]) -> str:
    return "autoload -U bashcompinit && bashcompinit\n" + _bash(words)


def _fish(words: dict[str, list[str]]) -> str:
    lines = [f"complete -c opdock -n __fish_use_subcommand -a '{' '.join(words)}'"]
    for name, options in words.items():
        for option in options:
            flag = f"-l {option[2:]}" if option.startswith("--") else f"-a {option}"
            lines.append(f"complete -c opdock -n '__fish_seen_subcommand_from {name}' {flag}")
    return "\n".join(lines) + "\n"
