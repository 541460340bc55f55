"""Fields of a checkpoint's quantisation configuration, each checked when it is read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from opdock.errors import CheckpointError, UnsupportedError, suggest
from opdock.nn.quantization.config import QuantizationConfig

FLOATS = (torch.bfloat16, torch.float16, torch.float32)
MISSING = object()


def integer(config: Mapping[str, Any], *keys: str, default: Any = MISSING) -> int:
    """Return a whole number; CheckpointError if it is none, or missing without a default."""
    value = _get(config, keys, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(keys, value, "a whole number")
    return value


def flag(config: Mapping[str, Any], *keys: str, default: Any = MISSING) -> bool:
    """Return a truth value; CheckpointError if it is none, or missing without a default."""
    value = _get(config, keys, default)
    if not isinstance(value, bool):
        raise _wrong(keys, value, "true or false")
    return value


def names(config: Mapping[str, Any], *keys: str) -> list[str]:
    """Return a list of names, the first of ``keys`` that is not null; empty if there is none.

    Raises: CheckpointError if it is no list of texts, or one that begins with ``re:`` is no regular expression.
    """
    key, value = next(((key, config[key]) for key in keys if config.get(key)), (keys[0], []))
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise _wrong((key,), value, "a list of names")
    for name in value:
        if name.startswith("re:"):
            try:
                re.compile(name[3:])
            except re.error as err:
                raise _wrong((key,), name, "a list of names and regular expressions", why=str(err)) from err
    return value


def choice(config: Mapping[str, Any], keys: Sequence[str], known: Sequence[str], default: Any = MISSING) -> str:
    """Return one of ``known``; UnsupportedError with near matches for anything else."""
    value = _get(config, keys, default)
    if value not in known:
        raise UnsupportedError(
            f"The quantisation configuration has {keys[0]} {value!r}, which opdock does not load.",
            why=f"It loads {', '.join(known)}.",
            remedy=suggest(str(value), known),
        )
    return str(value)


def described(config: Mapping[str, Any], method: str) -> None:
    """Raise UnsupportedError for the empty configuration of a checkpoint of floats that is to be quantised."""
    if not config:
        raise UnsupportedError(
            f"{method} does not quantise a checkpoint of floats while it is loaded.",
            why="Its tools choose codes and scales with a text that the model reads.",
            remedy='quantise it with a tool of that method first, or use quantization="fp8" or "int8_w8a8".',
        )


def four_bits(bits: int, method: str) -> None:
    """Raise UnsupportedError unless ``bits`` is 4."""
    if bits != 4:
        raise UnsupportedError(
            f"{method} with {bits} bits is not supported.",
            why="Weights without quantised activations are loaded with 4 bits.",
            remedy="use a checkpoint with 4 bits.",
        )


def _get(config: Mapping[str, Any], keys: Sequence[str], default: Any) -> Any:
    if default is MISSING:
        return QuantizationConfig.get_from_keys(config, keys)
    return QuantizationConfig.get_from_keys(config, keys, default)


def blocks(config: Mapping[str, Any], key: str) -> list[int] | None:
    """Return the sides of the blocks that have a scale each, None if missing or null.

    Raises: CheckpointError if they are no list; UnsupportedError if they are not [128, 128].
    """
    value = config.get(key)
    if value is None:
        return None
    if not isinstance(value, (list, tuple)):
        raise _wrong((key,), value, "a list of two numbers")
    if list(value) != [128, 128]:
        raise UnsupportedError(
            f"Blocks of {value} weights are not supported.",
            why="The kernels have a scale for 128 x 128 weights.",
            remedy="use a checkpoint with blocks of [128, 128].",
        )
    return [128, 128]


def _wrong(keys: Sequence[str], value: object, wanted: str, *, why: str | Sequence[str] = ()) -> CheckpointError:
    return CheckpointError(
        f"{keys[0]!r} in the quantisation configuration is not {wanted}: {value!r}.",
        why=why,
        remedy="download the checkpoint again; it is broken or of another kind.",
    )
