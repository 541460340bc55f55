"""What the native definitions share."""

from __future__ import annotations

import torch
from torch import Tensor

from opdock.errors import OpdockError


class ShapeError(OpdockError, ValueError):
    """Arguments of an op have shapes that do not fit together."""


def widen(x: Tensor) -> Tensor:
    """Return ``x`` in the dtype of the arithmetic: float32 at least, and ``x`` itself where it has it."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def halves(x: Tensor, op: str) -> tuple[Tensor, Tensor]:
    """Return the first and the second half of the last dimension, as views."""
    if x.shape[-1] % 2:
        raise ShapeError(
            f"{op} takes an even last dimension, got x of shape {tuple(x.shape)}.",
            remedy="give gate and up in one tensor, gate first.",
        )
    gate, up = x.chunk(2, dim=-1)
    return gate, up


def normalise(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None, dtype: torch.dtype, op: str
) -> Tensor:
    """Return the RMS norm of widened ``x``, rounded to ``weight``'s dtype, multiplied, rounded to ``dtype``."""
    hidden = x.shape[-1]
    if weight is not None and weight.shape[-1] != hidden:
        raise ShapeError(
            f"{op}: x of shape {tuple(x.shape)} does not fit weight of shape {tuple(weight.shape)}.",
            remedy="the last dimensions must be equal.",
        )
    part = x
    if variance_size is not None:
        if not 0 < variance_size <= hidden:
            raise ShapeError(
                f"{op}: variance_size {variance_size} is not between 1 and the hidden size {hidden}.",
                remedy="give None for the whole row.",
            )
        part = x[..., :variance_size]
    y = x * torch.rsqrt(part.pow(2).mean(dim=-1, keepdim=True) + epsilon)
    if weight is not None:
        y = y.to(weight.dtype) * weight
    return y.to(dtype)
