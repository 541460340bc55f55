"""The sum of a tensor over the ranks of a process group."""

from __future__ import annotations

import torch
from torch import Tensor

from opdock.ir.registering import register_op


@register_op(activations=["x"])
def all_reduce(x: Tensor, group_name: str) -> Tensor:
    """Add up x over the ranks of a process group; each rank has the sum.

    y = sum_r x_r

    Rounding points: those of the group's backend; NCCL and Gloo add in x's dtype, rank by rank, in an order of
    their own. All ranks have the same bits only if the backend says so.

    Every rank of the group must call it, in the same order among its collectives, with the same shape and dtype;
    a rank that does not leaves the others waiting until the group's timeout.

    Shapes: x any; returns like x, contiguous.
    Dtypes: x what the backend adds, float16, bfloat16, float32 and float64 at least; returns x's dtype.
    Args: group_name, ``group.group_name`` of a torch.distributed process group of this process.
    Mutates: nothing.
    Batch: not invariant; backends cut the tensor by its size and add each part in another order.
    Raises: RuntimeError if no group has the name.
    Source: torch.distributed._functional_collectives.
    """
    c10d = torch.ops._c10d_functional
    return c10d.wait_tensor(c10d.all_reduce(x, "sum", group_name))  # type: ignore[no-any-return]


# No input generator: without an initialised group there is no name to give.
