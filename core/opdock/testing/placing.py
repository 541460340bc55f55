"""Putting arguments where the kit wants them: on the device, in a given layout, between guard elements."""

from __future__ import annotations

from collections.abc import Callable
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
        once = _once(self.view.shape, self.view.stride())
        flat.as_strided(once, self.view.stride(), self.view.storage_offset()).zero_()
        return flat.view(torch.uint8)


def _once(shape: torch.Size, strides: tuple[int, ...]) -> list[int]:
    """Return the sizes with which each element of memory is there once: 1 where rows share it."""
    return [size if step or size < 1 else 1 for size, step in zip(shape, strides, strict=True)]


def _bytes(buffer: torch.Tensor) -> torch.Tensor:
    return buffer.cpu().clone().view(torch.uint8)


def geometry(shape: torch.Size, layout: str) -> tuple[torch.Size, tuple[int, ...], int] | None:
    """Return shape, strides and offset of a tensor in a layout, or None where the layout does not apply."""
    dense = _dense(shape)
    if layout in _FOLDS and len(shape) != 1:
        folded = _FOLDS[layout](*shape) if len(shape) == 2 else None
        return None if folded is None else (torch.Size(folded), _dense(torch.Size(folded)), 0)
    if layout == "dense" or not shape:
        return shape, dense, 0
    if layout == "odd offset":
        return shape, dense, 1
    if layout == "every other":
        return shape, tuple(2 * s for s in dense), 0
    if len(shape) < 2:
        return shape, dense, 0
    if layout == "expanded":
        return shape, (0, *dense[1:]), 0
    if layout == "transposed":
        return shape, (1, *(s * shape[0] for s in _dense(shape[1:]))), 0
    width = shape[1:].numel()
    wider, offset = (width + 24, 0) if layout == "padded rows" else (3 * width, width)
    return shape, (wider, *dense[1:]), offset


_FOLDS: dict[str, Callable[[int, int], tuple[int, ...] | None]] = {
    "one dimension": lambda rows, columns: (columns,) if rows == 1 else None,
    "three dimensions": lambda rows, columns: None if rows % 2 else (2, rows // 2, columns),
    "four dimensions": lambda rows, columns: None if rows % 2 else (2, 1, rows // 2, columns),
}
"""Layouts of other numbers of dimensions: the shape of rows and columns, or None where it does not apply."""


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
    once = _once(shape, strides)
    host.as_strided(once, strides, start).copy_(value.reshape(shape)[tuple(slice(n) for n in once)])
    buffer = host.to(device)
    if buffer is host:
        buffer = host.clone()
    return Placed(buffer.as_strided(shape, strides, start), buffer, _bytes(buffer))


def _layout_of(name: str, value: torch.Tensor, activations: tuple[str, ...], layout: str) -> str:
    """Return the layout of one tensor where the activations have ``layout``."""
    if layout == "parameters apart":
        rows = "every other" if value.dim() == 1 else "padded rows"
        return "dense" if name in activations else rows
    if layout == "first activation padded":
        return "padded rows" if name == activations[0] else "dense"
    return layout if name in activations or layout == "odd offset" else "dense"


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

    The activations get the layout; every other tensor is dense, but for ``odd offset``, which all get, and
    ``parameters apart``, which only they get. ``first activation padded`` leaves the other activations dense.
    """
    placed, given, reference = {}, [], []
    head = dict(zip(names, values, strict=True)).get("head_size")
    tensors = [name for name, value in zip(names, values, strict=True) if isinstance(value, torch.Tensor)]
    if (
        (layout == "parameters apart" and {*tensors} <= {*activations})
        or (layout == "first activation padded" and len(activations) < 2)
        or (layout == "heads in a dimension" and not isinstance(head, int))
    ):
        return None
    for name, value in zip(names, values, strict=True):
        if isinstance(value, torch.Tensor):
            own = _layout_of(name, value, activations, layout)
            if name in activations and layout == "heads in a dimension" and isinstance(head, int):
                value, own = value.reshape(len(value), -1, head), "dense"  # noqa: PLW2901
            if own == "expanded":
                value = value[:1].expand(value.shape)  # noqa: PLW2901
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
