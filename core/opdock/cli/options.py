"""Options that several commands share: the configuration, shapes and dtypes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opdock.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from opdock.config import OpdockConfig

PRIORITY = "--ir-op-priority"
DTYPES = ("float32", "bfloat16", "float16", "float64")
_MOST = 2**31


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add the options that make up a configuration."""
    parser.add_argument(
        "--compilation-config", metavar="JSON", help='for example \'{"custom_ops": ["none", "+rms_norm"]}\''
    )
    parser.add_argument(
        PRIORITY,
        metavar="JSON",
        help=f'providers by IR op, {{"rms_norm": "a,b"}}; or, for each op, {PRIORITY}.rms_norm=a,b; -a drops one',
    )


def take_dotted(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the arguments without ``--ir-op-priority.OP=a,b`` and ``--ir-op-priority.OP a,b``, and what they say.

    Raises: ConfigError for an op that is given twice, or without a name or value.
    """
    rest: list[str] = []
    found: dict[str, str] = {}
    queue = list(argv)
    while queue:
        word = queue.pop(0)
        if word == "--":  # everything after it is no option
            return [*rest, word, *queue], found
        if not word.startswith(PRIORITY + "."):
            rest.append(word)
            continue
        op, equals, value = word[len(PRIORITY) + 1 :].partition("=")
        if not equals:
            value = queue.pop(0) if queue and not queue[0].startswith("--") else ""
        if not op or not value.strip():
            raise ConfigError(
                f"{word} names {'no provider' if op else 'no IR op'}.", remedy=f"{PRIORITY}.{op or 'rms_norm'}=native"
            )
        if op in found:
            raise ConfigError(f"The priority of IR op {op!r} is given twice.", remedy=f"give {PRIORITY}.{op} once.")
        found[op] = value
    return rest, found


def config_of(args: argparse.Namespace) -> OpdockConfig:
    """Return the configuration that the options describe.

    Raises: ConfigError for text that is not JSON, an unknown field, or one op given in both ways.
    """
    from opdock.config import OpdockConfig

    priorities: dict[str, object] = _priorities_of(args.ir_op_priority)
    for op, value in args.dotted.items():
        if op in priorities:
            raise ConfigError(
                f"The priority of IR op {op!r} is given twice, in JSON and as {PRIORITY}.{op}.",
                remedy="give it in one of the two ways.",
            )
        priorities[op] = value
    return OpdockConfig.from_text(args.compilation_config, priorities)


def _priorities_of(text: str | None) -> dict[str, Any]:
    if not text:
        return {}
    try:
        given = json.loads(text)
    except json.JSONDecodeError as err:
        raise ConfigError(
            f"{PRIORITY} is not JSON: {err}.", why=text, remedy=f"{PRIORITY}.rms_norm=a,b needs no JSON."
        ) from None
    if not isinstance(given, dict):
        raise ConfigError(f"{PRIORITY} is not a JSON object.", remedy=f'{PRIORITY} \'{{"rms_norm": "a,b"}}\'')
    return given


def shape_of(text: str | None) -> tuple[int, int] | None:
    """Return ``1x4096`` as (1, 4096); ConfigError if it is not two possible sizes."""
    if text is None:
        return None
    parts = text.lower().replace(",", "x").split("x")
    sizes = [int(part) for part in parts if part.strip().isdecimal() and len(part) < 12]
    if len(parts) != 2 or len(sizes) != 2 or not all(0 < size < _MOST for size in sizes):
        raise ConfigError(
            f"{text!r} is not a shape of the form TOKENSxHIDDEN.",
            why=f"both are whole numbers from 1 to {_MOST - 1}.",
            remedy="--shape 1x4096",
        )
    return sizes[0], sizes[1]


def dtype_of(name: str | None) -> torch.dtype | None:
    """Return a floating dtype by torch's name for it."""
    if name is None:
        return None
    import torch

    from opdock.errors import suggest

    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ConfigError(f"{name!r} is not a floating dtype.", remedy=suggest(name, DTYPES))
    return found
