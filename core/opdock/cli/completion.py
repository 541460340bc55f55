"""``opdock completion SHELL``: a script made from the parsers."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Words:
    """What can be typed after one command: options with their help, those that take a value, other words."""

    help: str
    options: dict[str, str]
    with_value: tuple[str, ...]
    others: tuple[str, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help='for example: eval "$(opdock completion bash)"')


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    sys.stdout.write({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](words()))
    return 0


def words() -> dict[str, Words]:
    """Return what can be typed after each command."""
    from opdock.cli import COMMANDS, make_parser

    sub = next(a for a in make_parser()._actions if isinstance(a, argparse._SubParsersAction))
    found = {}
    for name, parser in sub.choices.items():
        named = {o: a for a in parser._actions for o in a.option_strings}
        found[name] = Words(
            COMMANDS[name],
            {o: (a.help or "").replace("%%", "%") for o, a in named.items() if o.startswith("--")},
            tuple(o for o, a in named.items() if a.nargs != 0),
            tuple(str(c) for a in parser._actions if not a.option_strings for c in a.choices or ()),
        )
    return found


def _bash(commands: dict[str, Words]) -> str:
    cases = "\n".join(
        f"    {name}) options='{' '.join(w.options)}' others='{' '.join(w.others)}' "
        f"valued=' {' '.join(w.with_value)} ' ;;"
        for name, w in commands.items()
    )
    return f"""_opdock() {{
  local options others valued word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
  COMPREPLY=()
  case ${{COMP_WORDS[1]}} in
{cases}
  esac
  [ "$COMP_CWORD" -gt 1 ] || {{ others='{" ".join(commands)}' options='--version --help' valued=''; }}
  case $valued in *" $before "*) return ;; esac  # a value: bash offers files
  case $word in -*) others=$options ;; esac
  COMPREPLY=($(compgen -W "$others" -- "$word"))
}}
complete -o default -F _opdock opdock
"""


def _zsh(commands: dict[str, Words]) -> str:
    return "autoload -U compinit bashcompinit\n(( $+functions[compdef] )) || compinit\nbashcompinit\n" + _bash(commands)


def _fish(commands: dict[str, Words]) -> str:
    lines = [
        f"complete -c opdock -n __fish_use_subcommand -a {name} -d {_fish_quote(w.help)}"
        for name, w in commands.items()
    ]
    lines += ["complete -c opdock -n __fish_use_subcommand -l version -d 'print the version'"]
    for name, w in commands.items():
        after = f"complete -c opdock -n '__fish_seen_subcommand_from {name}'"
        for option, text in w.options.items():
            value = " -r" if option in w.with_value else ""
            lines.append(f"{after} -l {option[2:]}{value} -d {_fish_quote(text)}")
        lines += [f"{after} -f -a {other}" for other in w.others]
    return "\n".join(lines) + "\n"


def _fish_quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
