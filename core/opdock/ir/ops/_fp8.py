"""What the native definitions that quantise to 8-bit floats share."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from opdock.errors import OpdockError
from opdock.ir.ops._numerics import ShapeError, widen

# The largest number that is written. torch has 240 for e4m3fnuz, and 224 is what kernels and checkpoints of those
# devices use: half of e4m3fn's 448, so that weights go from one format to the other with twice the scale.
# (vLLM, csrc/quantization/utils.cuh, quant_type_max; 240 costs accuracy with dynamic scales)
FP8_MAX = MappingProxyType(
    {
        torch.float8_e4m3fn: torch.finfo(torch.float8_e4m3fn).max,
        torch.float8_e4m3fnuz: 224.0,
        torch.float8_e5m2: torch.finfo(torch.float8_e5m2).max,
        torch.float8_e5m2fnuz: torch.finfo(torch.float8_e5m2fnuz).max,
    }
)
# One step: that of the subnormals, and that at the lower end of each power of two. Written out because
# torch.finfo(float8_e5m2fnuz).eps is 0.125, for a format with two bits of mantissa.
_STEPS = MappingProxyType(
    {
        torch.float8_e4m3fn: (2.0**-9, 0.125),
        torch.float8_e4m3fnuz: (2.0**-10, 0.125),
        torch.float8_e5m2: (2.0**-16, 0.25),
        torch.float8_e5m2fnuz: (2.0**-17, 0.25),
    }
)


class DtypeError(OpdockError, TypeError):
    """An argument of an op has, or is, a dtype that the op does not have."""


def fp8_max(dtype: torch.dtype, op: str) -> float:
    """Return the largest number to write in ``dtype``; DtypeError if it is no 8-bit float with a sign."""
    found = FP8_MAX.get(dtype)
    if found is None:
        raise DtypeError(
            f"{op} cannot quantise to {dtype}.",
            why=f"It is no 8-bit float with a sign and a mantissa: {', '.join(map(str, FP8_MAX))}.",
            remedy=f"give one of them, for example dtype={next(iter(FP8_MAX))}.",
        )
    return found


def scalar(scale: Tensor, name: str, op: str) -> Tensor:
    """Return a tensor of one float32 number as one without dimensions."""
    if scale.dtype != torch.float32:
        raise DtypeError(
            f"{op}: {name} is of {scale.dtype}.",
            why="Scales are float32; another dtype is most often the tensor of another parameter.",
            remedy=f"give {name}.float().",
        )
    if scale.numel() != 1:
        raise ShapeError(
            f"{op}: {name} of shape {tuple(scale.shape)} is not one number.",
            remedy=f"give {name} with one element; one scale for each row is what the per-token ops compute.",
        )
    return scale.reshape(())


def quantise(wide: Tensor, scale: Tensor, limit: float, dtype: torch.dtype) -> Tensor:
    """Return widened ``wide`` times the reciprocal of ``scale``, clamped to ``limit``, rounded to ``dtype``."""
    y = wide * scale.to(wide.dtype).reciprocal()
    return y.clamp(-limit, limit).to(dtype, memory_format=torch.contiguous_format)


def token_scales(wide: Tensor, scale_ub: Tensor | None, limit: float, op: str) -> Tensor:
    """Return the float32 scale of each row of widened ``wide``, (..., 1)."""
    if wide.ndim == 0 or wide.shape[-1] == 0:
        raise ShapeError(
            f"{op}: x of shape {tuple(wide.shape)} has no row with a largest element.",
            remedy="give x of shape (..., hidden) with hidden > 0.",
        )
    largest = wide.abs().amax(dim=-1, keepdim=True)
    if scale_ub is not None:
        largest = torch.minimum(largest, scalar(scale_ub, "scale_ub", op).to(wide.dtype))
    return (largest / limit).clamp(min=1.0 / (limit * 512.0)).float().contiguous()


def quantise_per_token(x: Tensor, scale_ub: Tensor | None, dtype: torch.dtype, op: str) -> tuple[Tensor, Tensor]:
    """Return ``x`` quantised with a scale for each row, and the scales."""
    limit, wide = fp8_max(dtype, op), widen(x)
    scales = token_scales(wide, scale_ub, limit, op)
    return quantise(wide, scales, limit, dtype), scales


def allow_one_step(op: Any) -> None:
    """Let each number of an op's 8-bit results be the next one: two correct ways may round to both sides of it."""
    for dtype, (atol, rtol) in _STEPS.items():
        op.override_tolerance(dtype, atol=atol, rtol=rtol)


def tokens(num_tokens: int, hidden_size: int, dtype: torch.dtype, device: torch.device | str | None) -> Tensor:
    """Return an activation for an input generator; one row in eight has an outlier, as those of models have."""
    x = torch.randn(num_tokens, hidden_size, dtype=dtype, device=device)
    x[::8, ::64] *= 16
    return x
