"""Fields of a checkpoint's quantisation configuration, each checked when it is read."""

from __future__ import annotations

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
    """Return a list of names, empty if missing or null; CheckpointError if it is no list of texts."""
    value = _get(config, keys, None) or []
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise _wrong(keys, value, "a list of names")
    return value


def choice(config: Mapping[str, Any], keys: Sequence[str], known: Sequence[str], default: Any = MISSING) -> str:
    """Return one of ``known``; UnsupportedError with near matches for anything else."""
    value = _get(config, keys, default)
    if value not in known:
        raise UnsupportedError(
            f"The quantisation configuration has {keys[0]} {value!r}, which opdock does not load.",
            remedy=suggest(str(value), known),
        )
    return str(value)


def described(config: Mapping[str, Any], method: str) -> None:
    """Raise UnsupportedError for the empty configuration of a checkpoint of floats that is to be quantised."""
    if not config:
        raise UnsupportedError(
            f"{method} does not quantise a checkpoint of floats while it is loaded.",
            remedy='quantise it with a tool of that method first, or use quantization="fp8" or "int8_w8a8".',
        )


def four_bits(bits: int, method: str) -> None:
    """Raise UnsupportedError unless ``bits`` is 4."""
    if bits != 4:
        raise UnsupportedError(f"{method} with {bits} bits is not supported.", remedy="use a checkpoint with 4 bits.")


def _get(config: Mapping[str, Any], keys: Sequence[str], default: Any) -> Any:
    if default is MISSING:
        return QuantizationConfig.get_from_keys(config, keys)
    return QuantizationConfig.get_from_keys(config, keys, default)


def _wrong(keys: Sequence[str], value: object, wanted: str) -> CheckpointError:
    return CheckpointError(
        f"{keys[0]!r} in the quantisation configuration is not {wanted}: {value!r}.",
        remedy="download the checkpoint again; it is broken or of another kind.",
    )
