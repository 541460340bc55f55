"""Weights and rows to 8-bit or 4-bit numbers and scales."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 128
"""Side of the blocks of block-wise scales, in elements."""


def limit_of(dtype: torch.dtype) -> float:
    """Return the largest number that is written in an 8-bit dtype: 448 or 127."""
    return 127.0 if dtype == torch.int8 else float(torch.finfo(dtype).max)


def _to(x: Tensor, dtype: torch.dtype) -> Tensor:
    limit = limit_of(dtype)
    return (x.round() if dtype == torch.int8 else x).clamp(-limit, limit).to(dtype)


def _scale(largest: Tensor, dtype: torch.dtype) -> Tensor:
    return (largest / limit_of(dtype)).clamp(min=1e-12)


def quantise_weight(weight: Tensor, dtype: torch.dtype, per: str) -> tuple[Tensor, Tensor]:
    """Return a weight (outputs, inputs) as 8-bit numbers, and its float32 scales.

    Args:
        weight: floats.
        dtype: float8_e4m3fn or int8.
        per: ``tensor``: scales (1,); ``channel``: (outputs,); ``block``: (outputs / 128, inputs / 128), rounded up.
    """
    wide = weight.float()
    if per == "block":
        rows, columns = weight.shape
        padded = torch.nn.functional.pad(wide, (0, -columns % BLOCK, 0, -rows % BLOCK))
        tiles = padded.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK))
        scales = _scale(tiles.abs().amax((1, 3)), dtype)
        return _to(wide / spread_blocks(scales, rows, columns), dtype), scales
    largest = wide.abs().amax(1, keepdim=True) if per == "channel" else wide.abs().amax().view(1, 1)
    scales = _scale(largest, dtype)
    return _to(wide / scales, dtype), scales.view(-1)


def spread_blocks(scales: Tensor, rows: int, columns: int) -> Tensor:
    """Return block-wise scales as one for each weight, (rows, columns)."""
    return scales.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns]


def quantise_rows_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row over its largest element / 127 as int8, and the float32 scales (rows, 1)."""
    wide = x.float()
    scales = _scale(wide.abs().amax(-1, keepdim=True), torch.int8)
    return _to(wide / scales, torch.int8), scales


def quantise_int8(x: Tensor, scale: Tensor) -> Tensor:
    """Return x over one float32 scale as int8."""
    return _to(x.float() / scale, torch.int8)


def quantise_groups(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return each 128 elements of each row over their largest / limit, and the float32 scales (rows, groups)."""
    columns = x.shape[1]
    wide = torch.nn.functional.pad(x.float(), (0, -columns % BLOCK)).unflatten(1, (-1, BLOCK))
    scales = _scale(wide.abs().amax(-1, keepdim=True), dtype)
    return _to(wide / scales, dtype).flatten(1)[:, :columns].contiguous(), scales.squeeze(-1)


def quantise_int4(weight: Tensor, group: int, *, zero_points: bool = False) -> tuple[Tensor, Tensor, Tensor | None]:
    """Round a weight to the nearest of 16 values in each group; for making checkpoints and tests.

    Args:
        weight: (outputs, inputs) floats.
        group: inputs that share a scale, a divisor of inputs.
        zero_points: whether each group has a zero point of its own.

    Returns: codes (outputs, inputs) uint8, float32 scales (groups, outputs), zero points (groups, outputs) uint8 or
        None where all are 8.
    """
    parts = weight.float().unflatten(1, (-1, group))
    if zero_points:
        low, high = parts.amin(-1, keepdim=True).clamp(max=0), parts.amax(-1, keepdim=True).clamp(min=0)
        scales = ((high - low) / 15).clamp(min=1e-12)
        zeros = (-low / scales).round().clamp(0, 15)
    else:
        scales = (parts.abs().amax(-1, keepdim=True) / 7.5).clamp(min=1e-12)
        zeros = torch.full_like(scales, 8)
    codes = (parts / scales + zeros).round().clamp(0, 15).to(torch.uint8).flatten(1)
    out = zeros.squeeze(-1).t().contiguous().to(torch.uint8) if zero_points else None
    return codes, scales.squeeze(-1).t().contiguous(), out
