"""What memory a fake tensor covers: the questions that alias analysis asks of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

Layout = tuple[Any, ...]


def storage_of(value: object) -> int | None:
    """Return the identity of the storage of a strided tensor, None for anything else."""
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        identity: int = value.untyped_storage()._cdata
        return identity
    return None


def layout_of(value: torch.Tensor) -> Layout:
    """Return what says how a tensor's elements lie in its storage."""
    return (
        *value.size(),
        *value.stride(),
        value.storage_offset(),
        value.itemsize,
        value.is_conj(),
        value.is_neg(),
    )


def same_layout(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether it is known that the two have the same elements of their storages, in the same order."""
    return a.dim() == b.dim() and all(
        statically_known_true(x == y) for x, y in zip(layout_of(a), layout_of(b), strict=True)
    )


def covers(view: torch.Tensor, whole: torch.Tensor) -> bool:
    """Return whether it is known that ``view``, of the storage of ``whole``, has every element of ``whole``."""
    return (
        view.itemsize == whole.itemsize
        and view.is_contiguous()
        and whole.is_contiguous()
        and statically_known_true(view.storage_offset() == whole.storage_offset())
        and statically_known_true(view.numel() == whole.numel())
    )


def disjoint(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether it is known that two tensors of one storage have no byte in common.

    They have none if one ends before the other begins, or if both repeat with one period, as the columns of a
    matrix do, and have different parts of the period.
    """
    if any(statically_known_true(n == 0) for n in (*a.size(), *b.size())):
        return True
    first, second = _span(a), _span(b)
    if first and second and (first[1] <= second[0] or second[1] <= first[0]):
        return True
    if a.itemsize != b.itemsize:
        return False
    return any(_in_other_columns(a, b, n) for n in (*a.stride(), *b.stride()) if _is_plain(n) and n > 1)


def _span(value: torch.Tensor) -> tuple[int, int] | None:
    """Return the bytes [begin, end) that a tensor spans, or None where they are not known."""
    offset = value.storage_offset()
    sizes = (*value.size(), *value.stride(), offset)
    if not all(map(_is_plain, sizes)):
        return None
    length = 1 + sum((k - 1) * s for k, s in zip(value.size(), value.stride(), strict=True))
    return int(offset) * value.itemsize, int(offset + length) * value.itemsize


def _in_other_columns(a: torch.Tensor, b: torch.Tensor, period: int) -> bool:
    first, second = _columns(a, period), _columns(b, period)
    return first is not None and second is not None and (first[1] <= second[0] or second[1] <= first[0])


def _columns(value: torch.Tensor, period: int) -> tuple[int, int] | None:
    """Return the part [begin, end) of every ``period`` elements that a tensor has, None if it is not one part."""
    begin = _known(value.storage_offset() % period)
    if begin is None:
        return None
    end = begin + 1
    for size, stride in zip(value.size(), value.stride(), strict=True):
        if not statically_known_true(stride % period == 0):
            if not _is_plain(size) or not _is_plain(stride):
                return None
            end += (size - 1) * stride
    return (begin, end) if end <= period else None


def _is_plain(number: object) -> bool:
    """Return whether a size is a number, and no symbol, whatever its hint says."""
    return isinstance(number, int)


def _known(number: Any) -> int | None:
    if isinstance(number, int):
        return number
    expression = number.node.expr
    return int(expression) if expression.is_number else None


def describe(value: object) -> str:
    """Return dtype, sizes and strides of a tensor, as messages show them."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    sizes: Sequence[object] = [*value.size()]
    return f"{str(value.dtype).removeprefix('torch.')}{sizes} strides {[*value.stride()]}"
