"""Memory of a fixed pattern around a tensor. As a number it is NaN: what is read shows, and so does what is written."""

from __future__ import annotations

import torch
from torch import Tensor

MARGIN = 64  # elements before and behind
LAYOUTS = ("dense", "columns", "padded", "odd stride", "odd offset", "heads", "swapped", "transposed", "four")
"""``columns`` is q, k or v of one projection; ``heads`` and ``swapped`` have three dimensions, ``four`` has four with
three strides; in ``transposed`` the rows are not dense."""
_PATTERNS = {1: (torch.uint8, 0x7F), 2: (torch.int16, 0x7FD5), 4: (torch.int32, 0x7FD5D5D5)}


class Canaries:
    """A flat buffer of canaries, with a tensor in it.

    Args:
        dtype: of the tensor: a floating type of 1, 2 or 4 bytes, or an integer.
        geometry: shape, strides and offset of the tensor.
        device: where.
    """

    def __init__(self, dtype: torch.dtype, geometry: tuple[tuple[int, ...], tuple[int, ...], int], device: str) -> None:
        shape, strides, offset = geometry
        reach = sum(step * max(0, n - 1) for step, n in zip(strides, shape, strict=True)) + 1
        integer, self.pattern = _PATTERNS[dtype.itemsize]
        self.raw = torch.full((offset + reach + MARGIN,), self.pattern, dtype=integer, device=device)
        self.x = self.raw.view(dtype).as_strided(shape, strides, offset)
        self._inside = self.raw.as_strided(shape, strides, offset)

    def put(self, values: Tensor) -> Tensor:
        """Write values of the tensor's number of elements and return the tensor."""
        self.x.copy_(values.reshape(self.x.shape))
        return self.x

    def has(self, values: Tensor) -> Tensor:
        """Return whether the tensor has the bits of ``values``, as a tensor: nobody waits for the device."""
        return (self._inside == values.reshape(self.x.shape).view(self.raw.dtype)).all()

    def holds(self, values: Tensor) -> bool:
        """Return whether the tensor has the bits of ``values``."""
        return bool(self.has(values))

    def last(self) -> Tensor:
        """Take the tensor out of the buffer, and return whether all canaries are alive, as a tensor."""
        self._inside.fill_(self.pattern)
        return (self.raw == self.pattern).all()

    def end(self) -> bool:
        """Take the tensor out of the buffer, and return whether all canaries are alive."""
        return bool(self.last())


def geometry(rows: int, width: int, layout: str) -> tuple[tuple[int, ...], tuple[int, ...], int] | None:
    """Return shape, strides and offset of rows in a layout; None where there are not enough rows for it."""
    inner = next((n for n in (2, 3) if rows % n == 0), 1)
    outer = rows // inner
    plain = {
        "dense": (width, MARGIN),
        "columns": (3 * width, MARGIN + width),
        "padded": (width + 32, MARGIN),
        "odd stride": (width + 3, MARGIN),
        "odd offset": (width, MARGIN + 3),
    }
    if layout in plain:
        stride, offset = plain[layout]
        return (rows, width), (stride, 1), offset
    if layout == "transposed":
        return (rows, width), (1, max(rows, 1)), MARGIN
    if layout == "four":
        strides = (4 * width + 96, 2 * width + 32, width, 1)
        return None if rows % 4 or not rows else ((rows // 4, 2, 2, width), strides, MARGIN)
    strides3 = (inner * width + 32, width, 1) if layout == "heads" else (width, max(outer, 1) * width, 1)
    return (outer, inner, width), strides3, MARGIN
