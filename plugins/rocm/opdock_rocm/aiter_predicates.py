"""Which arguments AITER's kernels take: pure functions of metadata, each with the parameters of its IR op.

The rules are those that AITER's own functions assert, in the strictest form of its releases: dense 16-bit rows, a
weight of the same dtype. What they do not take goes to the next provider.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opdock_rocm import predicates

Answer = bool | str

_HALVES = (torch.float16, torch.bfloat16)
_WIDEST = 8192
"""Columns that AITER's norms of every release take."""
_STEP = 8
"""A row is a multiple of it: 16 bytes."""


def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Answer:
    """Return whether ``rmsnorm2d_fwd`` takes the arguments of ``rms_norm``."""
    if weight is None:
        return "AITER has no norm without a weight"
    return _rows("x", x) or _wide(x) or predicates.rms_norm(x, weight, epsilon, variance_size)


def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> Answer:
    """Return whether ``rmsnorm2d_fwd_with_add`` takes the arguments of ``fused_add_rms_norm``."""
    if weight is None:
        return "AITER has no norm without a weight"
    return (
        _rows("x", x)
        or _rows("x_residual", x_residual)
        or _wide(x)
        or predicates.fused_add_rms_norm(x, x_residual, weight, epsilon, variance_size)
    )


def _rows(name: str, x: Tensor) -> str:
    if x.dtype not in _HALVES:
        return f"{name} of {x.dtype}: AITER is used for float16 and bfloat16"
    if not x.is_contiguous() or x.dim() < 2:
        return f"{name} of shape {tuple(x.shape)} is not dense rows"
    return "" if x.numel() else f"{name} has no elements"


def _wide(x: Tensor) -> str:
    hidden = x.shape[-1]
    if hidden > _WIDEST or hidden % _STEP:
        return f"rows of {hidden}: AITER takes multiples of {_STEP} up to {_WIDEST}"
    return ""
