"""Rows in memory as models have them, between guards that are NaN: reading past an end shows, writing there is seen."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LAYOUTS = ("dense", "columns", "padded", "odd stride", "odd offset", "heads", "swapped")


@dataclass
class Placed:
    """A tensor inside a larger buffer.

    Args:
        buffer: all of the memory, as it was made.
        x: the tensor, a view of it.
    """

    buffer: Tensor
    x: Tensor

    def __post_init__(self) -> None:
        self.before = self.buffer.clone()

    def untouched(self) -> bool:
        """Return whether the buffer is as it was, bit for bit."""
        return same_bits(self.buffer, self.before)

    def untouched_outside(self) -> bool:
        """Return whether the buffer is as it was, but for what the tensor itself is now."""
        expected = self.before.clone()
        expected.as_strided(self.x.shape, self.x.stride(), self.x.storage_offset()).copy_(self.x)
        return same_bits(self.buffer, expected)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors of one shape and dtype hold the same bits."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def place(values: Tensor, layout: str) -> Placed:
    """Copy (tokens, width) into memory of a layout; the last two layouts add a dimension of two heads."""
    tokens, width = values.shape
    shape: tuple[int, ...] = (tokens, width)
    if layout == "dense":
        strides, offset = (width, 1), 64
    elif layout == "columns":  # q, k or v in what one linear layer makes
        strides, offset = (3 * width, 1), 64 + width
    elif layout == "padded":
        strides, offset = (width + 32, 1), 64
    elif layout == "odd stride":
        strides, offset = (width + 3, 1), 64
    elif layout == "odd offset":
        strides, offset = (width, 1), 67
    else:
        shape, values = (tokens, 2, width), torch.stack((values, -values.flip(-1)), dim=1)
        heads = layout == "heads"
        strides, offset = ((2 * width + 32, width, 1) if heads else (width, tokens * width, 1)), 64
    reach = sum(stride * max(0, length - 1) for stride, length in zip(strides, shape, strict=True)) + 1
    buffer = torch.full((offset + reach + 64,), float("nan"), dtype=values.dtype, device=values.device)
    x = buffer.as_strided(shape, strides, offset)
    x.copy_(values)
    return Placed(buffer, x)
