"""The sum over a process group, followed by residual addition and RMS normalisation."""

from __future__ import annotations

import torch
from torch import Tensor

from opdock.ir.ops.all_reduce import all_reduce
from opdock.ir.ops.fused_add_rms_norm import fused_add_rms_norm
from opdock.ir.registering import register_op


@register_op(activations=["x", "x_residual"])
def all_reduce_fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, group_name: str
) -> tuple[Tensor, Tensor]:
    """Add up x over a process group, add the residual, and normalise each row.

    y, residual = fused_add_rms_norm(all_reduce(x, group_name), x_residual, weight, epsilon)

    Rounding points: those of the two, so the sum over the group is rounded to x's dtype before the residual is
    added, and fusing changes no bit of what the same sum gives. A kernel that adds in another order is within
    tolerance.

    The residual is that of this rank: it is not added up, and is the same on every rank in tensor parallelism.

    Shapes: x, x_residual (..., hidden); weight (hidden,) or None; returns y and the residual, like x.
    Dtypes: x, x_residual float16, bfloat16, float32, float64; weight any of them; both results have x's dtype.
    Args: epsilon, added to the mean square, no unit, > 0; group_name, see all_reduce.
    Mutates: nothing.
    Batch: not invariant; see all_reduce and rms_norm.
    Raises: what the two raise, in their names: RuntimeError if no group has the name; ShapeError if the shapes of x
        and x_residual or the hidden sizes differ.
    Source: Zhang and Sennrich 2019, arXiv:1910.07467; vLLM's fusion of all-reduce and RMS norm.
    """
    return fused_add_rms_norm.op.native(all_reduce.op.native(x, group_name), x_residual, weight, epsilon)  # type: ignore[no-any-return]


# As for fused_add_rms_norm; and the sum may be added in another order.
all_reduce_fused_add_rms_norm.override_tolerance(torch.float16, atol=1e-2, rtol=2e-3)
