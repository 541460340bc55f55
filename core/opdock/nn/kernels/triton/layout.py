"""Rows in memory: where each one begins, for tensors of any number of dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Strides = tuple[int, "int | None"]


def split_rows(*tensors: Tensor) -> tuple[int, int | None, list[Strides]] | None:
    """Describe the rows (the last dimension) of tensors whose leading sizes are equal.

    Row r of a tensor begins ``r // inner * outer_stride + r % inner * inner_stride`` elements behind its first one,
    or ``r * outer_stride`` where ``inner`` is None.

    Returns: the number of rows, ``inner``, and (outer stride, inner stride) of each tensor; None where the rows of
        one of them lie along more than two strides.
    """
    leading = tensors[0].shape[:-1]
    merged = [(n, *s) for n, *s in zip(leading, *(t.stride()[:-1] for t in tensors), strict=True) if n != 1]
    k = len(merged) - 1
    while k > 0:
        (n, *outer), (m, *inner) = merged[k - 1], merged[k]
        if all(a == m * b for a, b in zip(outer, inner, strict=True)):
            merged[k - 1 : k + 1] = [(n * m, *inner)]
        k -= 1
    if not merged:  # one row: its stride is the dense one, so that the same kernel serves it alone and in a batch
        return 1, None, [(t.shape[-1], None) for t in tensors]
    if len(merged) == 1:
        n, *strides = merged[0]
        return n, None, [(s, None) for s in strides]
    if len(merged) > 2:
        return None
    (n, *outer), (m, *inner) = merged
    return n * m, m, list(zip(outer, inner, strict=True))


def overlap(t: Tensor) -> bool:
    """Return whether rows of a tensor may share elements, as expanded ones do."""
    reach = t.shape[-1]
    for stride, size in sorted(zip(t.stride()[:-1], t.shape[:-1], strict=True)):
        if size != 1:
            if stride < reach:
                return True
            reach = stride * size
    return False


def why_not_rows(name: str, t: Tensor) -> str:
    """Return why the rows of a tensor cannot be addressed as they lie, "" if they can."""
    if not t.dim():
        return f"{name} has no dimension"
    if t.shape[-1] != 1 and t.stride(-1) != 1:
        return f"{name}: the last dimension has stride {t.stride(-1)}, not 1"
    if overlap(t):
        return f"{name}: rows share memory (strides {tuple(t.stride())})"
    return ""


def flat(strides: Sequence[Strides]) -> list[int | None]:
    """Return outer and inner strides of several tensors, one after the other."""
    return [s for pair in strides for s in pair]
