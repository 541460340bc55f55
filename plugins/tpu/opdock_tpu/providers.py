"""The providers of the IR ops, each a call of one kernel in Pallas.

Each row is reduced by itself. Whether its bits are the same in any batch was not measured on a TPU: none promises it.
"""

# ruff: noqa: ARG001, D103 - signatures and documentation are those of the IR ops
# mypy: disable-error-code="untyped-decorator, no-any-return"
from __future__ import annotations

import torch
from torch import Tensor

from opdock import ir
from opdock_tpu import (
    library,
    ops,  # noqa: F401 - defines torch.ops.opdock_tpu
    predicates,
    probe,
)
from opdock_tpu.priorities import PALLAS

_tpu = torch.ops.opdock_tpu


def supported() -> bool | str:
    """Return True where torchax is loaded and a TPU, or what stands in for one, is there; or why not."""
    return library.why_not() or probe.why_not() or True


@ir.ops.rms_norm.register_impl(PALLAS, supported=supported, supports_args=predicates.rms_norm)
def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    return _tpu.rms_norm.default(x, weight, epsilon)


@ir.ops.fused_add_rms_norm.register_impl(PALLAS, supported=supported, supports_args=predicates.fused_add_rms_norm)
def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    return _tpu.fused_add_rms_norm.default(x, x_residual, weight, epsilon)
