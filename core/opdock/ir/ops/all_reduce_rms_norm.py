"""The sum over a process group, followed by RMS normalisation."""

from __future__ import annotations

import torch
from torch import Tensor

from opdock.ir.ops.all_reduce import all_reduce
from opdock.ir.ops.rms_norm import rms_norm
from opdock.ir.registering import register_op


@register_op(activations=["x"])
def all_reduce_rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, group_name: str) -> tuple[Tensor, Tensor]:
    """Add up x over a process group, and normalise each row of the sum; the sum is what models keep as residual.

    s = all_reduce(x, group_name);  y = rms_norm(s, weight, epsilon)

    Rounding points: those of the two, so s is rounded to x's dtype before it is normalised, and fusing changes no
    bit of what the same sum gives. A kernel that adds in another order is within tolerance.

    Shapes: x (..., hidden); weight (hidden,) or None; returns y and s, like x, contiguous.
    Dtypes: x float16, bfloat16, float32, float64; weight any of them; both results have x's dtype.
    Args: epsilon, added to the mean square, no unit, > 0; group_name, see all_reduce.
    Mutates: nothing.
    Batch: not invariant; see all_reduce and rms_norm.
    Raises: what the two raise, in their names: RuntimeError if no group has the name; ShapeError if hidden differs.
    Source: Zhang and Sennrich 2019, arXiv:1910.07467; vLLM's fusion of all-reduce and RMS norm.
    """
    total = all_reduce.op.native(x, group_name)
    return rms_norm.op.native(total, weight, epsilon), total


# As for rms_norm; and the sum may be added in another order.
all_reduce_rms_norm.override_tolerance(torch.float16, atol=1e-2, rtol=2e-3)
