"""Options that several commands share: the configuration, shapes and dtypes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from opdock.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from opdock.config import OpdockConfig

PRIORITY = "--ir-op-priority"


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add the options that make up a configuration."""
    parser.add_argument(
        "--compilation-config", metavar="JSON", help='for example \'{"custom_ops": ["none", "+rms_norm"]}\''
    )
    parser.add_argument(
        PRIORITY, metavar="JSON", help=f'providers by IR op; or dotted: {PRIORITY}.rms_norm=a,native, "-a" drops one'
    )


def take_dotted(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the arguments without ``--ir-op-priority.OP=a,b`` and ``--ir-op-priority.OP a,b``, and what they say.

    Raises: ConfigError for an op that is given twice or without a value.
    """
    rest: list[str] = []
    found: dict[str, str] = {}
    queue = list(argv)
    while queue:
        word = queue.pop(0)
        if not word.startswith(PRIORITY + "."):
            rest.append(word)
            continue
        op, equals, value = word[len(PRIORITY) + 1 :].partition("=")
        if not equals:
            if not queue:
                raise ConfigError(f"{word} has no value.", remedy=f"{word}=native")
            value = queue.pop(0)
        if op in found:
            raise ConfigError(f"The priority of IR op {op!r} is given twice.", remedy=f"give {PRIORITY}.{op} once.")
        found[op] = value
    return rest, found


def config_of(args: argparse.Namespace) -> OpdockConfig:
    """Return the configuration that the options describe.

    Raises: ConfigError for text that is not JSON, an unknown field, or one op given in both ways.
    """
    from opdock.config import OpdockConfig

    priorities: dict[str, object] = {}
    if args.ir_op_priority:
        try:
            given = json.loads(args.ir_op_priority)
        except json.JSONDecodeError as err:
            raise ConfigError(f"{PRIORITY} is not JSON: {err}.", remedy=f"{PRIORITY}.OP=a,b") from None
        if not isinstance(given, dict):
            raise ConfigError(f"{PRIORITY} is not a JSON object.", remedy=f'{PRIORITY} \'{{"rms_norm": "a,b"}}\'')
        priorities.update(given)
    for op, value in args.dotted.items():
        if op in priorities:
            raise ConfigError(f"The priority of IR op {op!r} is given twice.", remedy="give it in one of the two ways.")
        priorities[op] = value
    return OpdockConfig.from_text(args.compilation_config, priorities)


def shape_of(text: str | None) -> tuple[int, ...] | None:
    """Return ``1x4096`` as (1, 4096)."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.lower().replace(",", "x").split("x"))
    except ValueError:
        raise ConfigError(f"{text!r} is not a shape.", remedy="--shape 1x4096") from None


def dtype_of(name: str | None) -> torch.dtype | None:
    """Return a torch dtype by its name."""
    if name is None:
        return None
    import torch

    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ConfigError(f"{name!r} is not a floating dtype.", remedy="use float32, bfloat16 or float16.")
    return found
