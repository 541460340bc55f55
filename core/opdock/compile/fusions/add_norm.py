"""An addition whose sum is normalised: one op that returns both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from opdock.compile.fusion import Fusion
from opdock.ir import ops

_Pair = tuple[torch.Tensor, torch.Tensor]


def _apart(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float) -> _Pair:
    total = torch.ops.aten.add.Tensor(x, residual)
    return ops.rms_norm(total, weight, epsilon), total


def _together(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float) -> _Pair:
    made = ops.fused_add_rms_norm(x, residual, weight, epsilon)
    return made[0], made[1]


def _alike(given: Mapping[str, Any]) -> bool | str:
    x, residual = given["x"], given["residual"]
    if not isinstance(x, torch.Tensor) or not isinstance(residual, torch.Tensor):
        return "one of the two is a number"
    if x.dtype != residual.dtype or not x.dtype.is_floating_point:
        return f"the sum of {x.dtype} and {residual.dtype} has a dtype of its own"
    return x.shape == residual.shape or "the sum is broadcast"


# In 16 bits the fused op normalises the sum before it is rounded: nearer to float64, not the same bits.
ADD_RMS_NORM = (Fusion("add_rms_norm", _apart, _together, _alike),)
