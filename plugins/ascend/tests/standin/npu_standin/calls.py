"""The record of what was asked of the device: for each call of an operator of torch_npu, its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

_MOST = 10_000


@dataclass(frozen=True)
class Call:
    """One call: the operator's name, and its arguments by the names of its schema, defaults included.

    A tensor is kept as ``(shape, dtype, device type)``.
    """

    op: str
    arguments: Mapping[str, Any]


_calls: list[Call] = []


def calls(op: str = "") -> list[Call]:
    """Return the calls so far, those of one operator if it is named."""
    return [call for call in _calls if op in ("", call.op)]


def forget() -> None:
    """Begin a new record."""
    _calls.clear()


def record(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Keep one call of an overload of torch.ops."""
    given = dict(kwargs)
    bound: dict[str, Any] = {}
    for place, argument in enumerate(op._schema.arguments):
        if place < len(args):
            value = args[place]
        elif argument.name in given:
            value = given[argument.name]
        else:
            value = argument.default_value
        bound[argument.name] = _described(value)
    _calls.append(Call(op._schema.name, bound))
    del _calls[:-_MOST]


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype, value.device.type
    return value
