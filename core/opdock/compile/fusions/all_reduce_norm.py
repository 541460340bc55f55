"""A sum over a process group that is normalised: a vendor has both in one kernel."""

from __future__ import annotations

import torch

from opdock.compile.fusion import Fusion
from opdock.ir import ops

_Pair = tuple[torch.Tensor, torch.Tensor]


def _norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float, group_name: str) -> _Pair:
    total = ops.all_reduce(x, group_name)
    return ops.rms_norm(total, weight, epsilon), total


def _functional_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float, group_name: str) -> _Pair:
    total = _functional_sum(x, group_name)
    return ops.rms_norm(total, weight, epsilon), total


def _norm_together(x: torch.Tensor, weight: torch.Tensor, epsilon: float, group_name: str) -> _Pair:
    made = ops.all_reduce_rms_norm(x, weight, epsilon, group_name)
    return made[0], made[1]


def _add_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float, group_name: str) -> _Pair:
    made = ops.fused_add_rms_norm(ops.all_reduce(x, group_name), residual, weight, epsilon)
    return made[0], made[1]


def _functional_add_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float, group_name: str
) -> _Pair:
    made = ops.fused_add_rms_norm(_functional_sum(x, group_name), residual, weight, epsilon)
    return made[0], made[1]


def _add_norm_together(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float, group_name: str
) -> _Pair:
    made = ops.all_reduce_fused_add_rms_norm(x, residual, weight, epsilon, group_name)
    return made[0], made[1]


def _functional_sum(x: torch.Tensor, group_name: str) -> torch.Tensor:
    c10d = torch.ops._c10d_functional
    total: torch.Tensor = c10d.wait_tensor.default(c10d.all_reduce.default(x, "sum", group_name))
    return total


ALL_REDUCE_NORM = (
    Fusion("all_reduce_rms_norm", _norm, _norm_together),
    Fusion("all_reduce_rms_norm", _functional_norm, _norm_together),
    Fusion("all_reduce_fused_add_rms_norm", _add_norm, _add_norm_together),
    Fusion("all_reduce_fused_add_rms_norm", _functional_add_norm, _add_norm_together),
)
