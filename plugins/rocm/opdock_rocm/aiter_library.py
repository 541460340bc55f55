"""AITER, AMD's library of kernels: whether it can be used, and the functions of it that are called.

It is optional. The functions changed between its releases, so each is taken only if it has the parameters that are
passed, by name and in order; what comes behind them must have defaults, but for one that is known.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

PARAMETERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "rmsnorm2d_fwd": ("input", "weight", "epsilon"),
        "rmsnorm2d_fwd_with_add": ("out", "input", "residual_in", "residual_out", "weight", "epsilon"),
    }
)
"""The functions that are called, and what is passed to each, by position."""

ALSO = "use_model_sensitive_rmsnorm"
"""A parameter that some releases want to be given; 0 is what the others have as its default."""

SERIES = ("gfx94", "gfx95")
"""How the names of the architectures begin that it is written for: MI300 and MI350."""


def why_not_on(gfx: str) -> str:
    """Return why AITER is not used on this architecture, "" where it is."""
    if gfx.startswith(SERIES):
        return ""
    return f"AITER is used on {' and '.join(f'{name}x' for name in SERIES)}, and the GPU is {gfx or 'unknown'}"


@functools.cache
def why_not() -> str:
    """Return why AITER cannot be used in this process, "" where it can; imports it."""
    if importlib.util.find_spec("aiter") is None:
        return "AITER is not installed: see github.com/ROCm/aiter"
    try:
        module = importlib.import_module("aiter")
    except Exception as err:  # noqa: BLE001 - a broken installation raises anything
        return f"aiter cannot be imported: {type(err).__name__}: {err}"
    unlike = [reason for name in PARAMETERS if (reason := mismatch(name, getattr(module, name, None)))]
    return unlike[0] if unlike else ""


def mismatch(name: str, function: Callable[..., Any] | None) -> str:
    """Return why a function of AITER cannot be called as it is here, "" where it can; pure.

    Args:
        name: one of ``PARAMETERS``.
        function: AITER's, None where it has none of that name.
    """
    if function is None:
        return f"this AITER has no {name}"
    try:
        found = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return f"the parameters of aiter.{name} cannot be read"
    wanted = PARAMETERS[name]
    if tuple(parameter.name for parameter in found[: len(wanted)]) != wanted:
        return f"aiter.{name} takes ({', '.join(p.name for p in found)}), and ({', '.join(wanted)}) is passed"
    needed = [name for name in _needed(found[len(wanted) :]) if name != ALSO]
    return f"aiter.{name} needs {needed[0]} too" if needed else ""


def _needed(parameters: list[inspect.Parameter]) -> list[str]:
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in kinds]


@functools.cache
def function(name: str) -> Callable[..., Any]:
    """Return a function of AITER, to be called with what ``PARAMETERS`` lists."""
    found: Callable[..., Any] = getattr(importlib.import_module("aiter"), name)
    also = ALSO in _needed(list(inspect.signature(found).parameters.values()))
    return functools.partial(found, **{ALSO: 0}) if also else found


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Return the norm of dense rows x (..., hidden), multiplied by weight (hidden,)."""
    y: Tensor = function("rmsnorm2d_fwd")(x.view(-1, x.shape[-1]), weight, epsilon)
    return y.view(x.shape)


def fused_add_rms_norm(x: Tensor, x_residual: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return (the norm of x + x_residual, the sum), both new."""
    rows = (-1, x.shape[-1])
    out, total = torch.empty_like(x), torch.empty_like(x)
    function("rmsnorm2d_fwd_with_add")(
        out.view(rows), x.view(rows), x_residual.view(rows), total.view(rows), weight, epsilon
    )
    return out, total
