"""Putting arguments where the kit wants them: on the device, in a given layout, between guard elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

GUARD = 64  # elements before and after


@dataclass
class Placed:
    """A tensor inside a larger buffer; everything around it is guard.

    Args:
        view: what an op is given.
        buffer: flat, holds the view and the guards.
        before: the buffer's bytes as they were, on the CPU.
    """

    view: torch.Tensor
    buffer: torch.Tensor
    before: torch.Tensor

    def written_outside(self) -> bool:
        """Return whether a byte of the buffer that is not the view's has changed."""
        return not torch.equal(*(self._without_view(b) for b in (self.before, _bytes(self.buffer))))

    def written(self) -> bool:
        """Return whether any byte of the buffer has changed."""
        return not torch.equal(self.before, _bytes(self.buffer))

    def _without_view(self, raw: torch.Tensor) -> torch.Tensor:
        flat = raw.clone().view(self.view.dtype)
        flat.as_strided(self.view.shape, self.view.stride(), self.view.storage_offset()).zero_()
        return flat.view(torch.uint8)


def _bytes(buffer: torch.Tensor) -> torch.Tensor:
    return buffer.cpu().clone().view(torch.uint8)


def geometry(shape: torch.Size, layout: str) -> tuple[torch.Size, tuple[int, ...], int] | None:
    """Return shape, strides and offset of a tensor in a layout, or None where the layout does not apply."""
    dense = _dense(shape)
    if layout == "dense" or not shape:
        return shape, dense, 0
    if layout == "odd offset":
        return shape, dense, 1
    if len(shape) < 2:
        return shape, dense, 0
    if layout == "three dimensions":
        rows = shape[0]
        if len(shape) != 2 or rows % 2:
            return None
        folded = torch.Size((2, rows // 2, shape[1]))
        return folded, _dense(folded), 0
    if layout == "transposed":
        return shape, (1, *(s * shape[0] for s in _dense(shape[1:]))), 0
    width = shape[1:].numel()
    wider, offset = (width + 24, 0) if layout == "padded rows" else (3 * width, width)
    return shape, (wider, *dense[1:]), offset


def _dense(shape: torch.Size) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def place(value: torch.Tensor, layout: str, device: str) -> Placed | None:
    """Return the tensor's values on the device in a layout, between guards; None where the layout does not apply.

    Guards of floating point are NaN: a result that has read one shows it.
    """
    found = geometry(value.shape, layout)
    if found is None:
        return None
    shape, strides, offset = found
    extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if shape.numel() else 0
    start = GUARD + offset
    canary = float("nan") if value.is_floating_point() else 77
    host = torch.empty(start + extent + GUARD, dtype=value.dtype)
    host.fill_(canary if value.dtype != torch.bool else True)
    host.as_strided(shape, strides, start).copy_(value.reshape(shape))
    buffer = host.to(device)
    if buffer is host:
        buffer = host.clone()
    return Placed(buffer.as_strided(shape, strides, start), buffer, _bytes(buffer))


@dataclass
class Arguments:
    """The arguments of a call, placed, and the same values on the CPU for the reference.

    Args:
        values: what the op is given.
        placed: the tensors among them, by parameter name.
        reference: the same values as dense CPU tensors of the same shapes.
    """

    values: list[Any]
    placed: dict[str, Placed]
    reference: list[Any]


def arguments(
    names: list[str], values: list[Any], *, activations: tuple[str, ...], layout: str, device: str
) -> Arguments | None:
    """Return placed arguments; None where the layout does not apply to them.

    The activations get the layout; every other tensor is dense, but for ``odd offset``, which all get.
    """
    placed, given, reference = {}, [], []
    for name, value in zip(names, values, strict=True):
        if isinstance(value, torch.Tensor):
            own = layout if name in activations or layout == "odd offset" else "dense"
            found = place(value, own, device)
            if found is None:
                return None
            placed[name] = found
            given.append(found.view)
            reference.append(value.reshape(found.view.shape).clone())
        else:
            given.append(value)
            reference.append(value)
    return Arguments(given, placed, reference)
