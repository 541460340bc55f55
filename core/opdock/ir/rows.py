"""A native definition that runs one row after the other, so that no row's bits depend on the rows beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from opdock.errors import UnsupportedError


def run_by_rows(op: Any) -> Callable[..., Any]:
    """Return the definition of ``op`` called on each row of its activations; results have a row for each of theirs.

    Torch may sum in another order, or take another ``exp``, for another number of rows. Here every call has the same
    shapes, and dense copies that begin where the allocator begins memory: what could choose another order is the same.
    """
    native, activations = op.native, op.activation_indices

    def rows(*args: Any) -> Any:
        shape = args[activations[0]].shape
        if len(shape) < 2 or not shape[0]:
            return native(*args)
        if isinstance(shape[0], torch.SymInt):
            what = f"Op {op.name} cannot run row by row in code that is compiled for any number of rows."
            raise UnsupportedError(what, why="VLLM_BATCH_INVARIANT=1 asks for it.", remedy="run op by op, in mode 0.")
        made = [native(*(_row(a, i) if k in activations else a for k, a in enumerate(args))) for i in range(shape[0])]
        return tuple(map(torch.cat, zip(*made, strict=True))) if isinstance(made[0], tuple) else torch.cat(made)

    return rows


def _row(x: torch.Tensor, index: int) -> torch.Tensor:
    return x.narrow(0, index, 1).clone(memory_format=torch.contiguous_format)
