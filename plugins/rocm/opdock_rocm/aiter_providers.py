"""The providers named ``aiter``: calls of AMD's library, where it is installed and has the functions.

Whether a row's bits are the same in any batch is not documented and was not measured, so none promises it. Its
activations are not used: in bfloat16 they are less exact than the definitions allow (errors of 6e-2 were reported,
where other kernels have 4e-3).
"""

# ruff: noqa: ARG001, D103, TC002 - signatures and documentation are those of the IR ops
# mypy: disable-error-code="untyped-decorator, arg-type"
from __future__ import annotations

from torch import Tensor

from opdock import ir
from opdock_rocm import aiter_library, aiter_predicates, probe
from opdock_rocm.platform import RocmPlatform
from opdock_rocm.priorities import AITER


def supported() -> bool | str:
    """Return True where AITER can be used on this process's first GPU, or why not."""
    # The GPU first: importing AITER where there is none fails, or compiles for a minute.
    return probe.why_not() or aiter_library.why_not_on(RocmPlatform.get_gfx()) or aiter_library.why_not() or True


@ir.ops.rms_norm.register_impl(AITER, supported=supported, supports_args=aiter_predicates.rms_norm)
def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    return aiter_library.rms_norm(x, weight, epsilon)


@ir.ops.fused_add_rms_norm.register_impl(AITER, supported=supported, supports_args=aiter_predicates.fused_add_rms_norm)
def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    return aiter_library.fused_add_rms_norm(x, x_residual, weight, epsilon)
