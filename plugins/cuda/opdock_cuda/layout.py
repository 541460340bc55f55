"""How rows lie in memory: pure functions over shapes and strides, in elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Rows(NamedTuple):
    """The leading dimensions as two: row ``r`` begins ``r // inner`` outer and ``r % inner`` inner strides in."""

    inner: int
    outer_stride: int
    inner_stride: int


def rows_of(shape: Sequence[int], strides: Sequence[int]) -> Rows | None:
    """Return how the kernels walk over the rows, or None where they cannot; the rule of ``csrc/launch.cuh``.

    Args:
        shape: of the tensor; the last dimension is the row.
        strides: in elements.
    """
    if not shape or (strides[-1] != 1 and shape[-1] > 1):
        return None
    inner, inner_stride = 1, 0
    size, stride, two = 1, 0, False
    for length, step in zip(reversed(shape[:-1]), reversed(strides[:-1]), strict=True):
        if length == 1:
            continue
        if size == 1:
            size, stride = length, step
        elif step == size * stride:
            size *= length
        elif two:
            return None
        else:
            two, inner, inner_stride = True, size, stride
            size, stride = length, step
    return Rows(inner, stride, inner_stride)


def lies_apart(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether each element has a place of its own; False also where only a search could tell.

    Args:
        shape: of the tensor.
        strides: in elements.
    """
    if 0 in shape:
        return True
    reach = 1  # one more than the distance of the farthest element of the dimensions so far
    for stride, length in sorted(zip(strides, shape, strict=True)):
        if length > 1:
            if stride < reach:
                return False
            reach += stride * (length - 1)
    return True
