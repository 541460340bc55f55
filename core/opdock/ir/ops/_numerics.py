"""What the native definitions share."""

from __future__ import annotations

import torch
from torch import Tensor

from opdock.errors import ConfigError


def widen(x: Tensor) -> Tensor:
    """Return ``x`` in the dtype of the arithmetic: float32, or float64 for float64."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


class ShapeError(ConfigError):
    """Arguments of an op have shapes that do not fit together."""


def halves(x: Tensor, op: str) -> tuple[Tensor, Tensor]:
    """Return the first and the second half of the last dimension, as views."""
    if x.shape[-1] % 2:
        raise ShapeError(
            f"{op} takes an even last dimension, got x of shape {tuple(x.shape)}.",
            remedy="give gate and up in one tensor, gate first.",
        )
    gate, up = x.chunk(2, dim=-1)
    return gate, up


def root_mean_square(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None) -> Tensor:
    """Return widened ``x`` over its root mean square; the variance of the first ``variance_size`` columns."""
    hidden = x.shape[-1]
    if weight is not None and weight.shape[-1] != hidden:
        raise ShapeError(
            f"rms_norm: x of shape {tuple(x.shape)} does not fit weight of shape {tuple(weight.shape)}.",
            remedy="the last dimensions must be equal.",
        )
    if variance_size is not None and not 0 < variance_size <= hidden:
        raise ShapeError(
            f"rms_norm: variance_size {variance_size} is not between 1 and the hidden size {hidden}.",
            remedy="give None for the whole row.",
        )
    part = x if variance_size is None else x[..., :variance_size]
    return x * torch.rsqrt(part.pow(2).mean(dim=-1, keepdim=True) + epsilon)
