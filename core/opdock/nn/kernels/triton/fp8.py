"""8-bit floats: how values are rounded to them, and the facts of each format."""

# ruff: noqa: ANN001, ANN201, N803, N806 - Triton has its own types and habits
# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-not-found,attr-defined"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from opdock.ir.ops._fp8 import FP8_MAX
from opdock.nn.kernels.triton.target import Target


@dataclass(frozen=True)
class Format:
    """An 8-bit float.

    Attributes:
        mantissa: bits of the mantissa.
        bias: of the exponent.
        unsigned_zero: whether 0x80 is NaN, and there is no -0.
    """

    mantissa: int
    bias: int
    unsigned_zero: bool


_FORMATS = {
    torch.float8_e4m3fn: Format(3, 7, False),
    torch.float8_e4m3fnuz: Format(3, 8, True),
    torch.float8_e5m2: Format(2, 15, False),
    torch.float8_e5m2fnuz: Format(2, 16, True),
}


def constants(dtype: torch.dtype, target: Target) -> dict[str, float | int | bool]:
    """Return the constants that kernels which write ``dtype`` take."""
    kind, limit = _FORMATS[dtype], FP8_MAX[dtype]
    return {
        "LIMIT": limit,
        "LEAST": 1.0 / (limit * 512.0),
        "MANTISSA": kind.mantissa,
        "BIAS": kind.bias,
        "UNSIGNED_ZERO": kind.unsigned_zero,
        "HARD": _hard(dtype, target),
    }


NO_FP8: dict[str, float | int | bool] = {
    "LIMIT": 0.0,
    "LEAST": 0.0,
    "MANTISSA": 0,
    "BIAS": 0,
    "UNSIGNED_ZERO": False,
    "HARD": False,
}
"""The constants of a kernel that writes none."""


def allocate(shape: torch.Size | tuple[int, ...], dtype: torch.dtype, device: torch.device, target: Target) -> Tensor:
    """Return memory for 8-bit floats, as bytes where the kernel makes their bits itself."""
    held = dtype if _hard(dtype, target) else torch.uint8
    return torch.empty(shape, dtype=held, device=device)


def as_fp8(memory: Tensor, dtype: torch.dtype) -> Tensor:
    """Return allocated memory as a tensor of ``dtype``."""
    return memory if memory.dtype == dtype else memory.view(dtype)


def _hard(dtype: torch.dtype, target: Target) -> bool:
    return dtype == torch.float8_e4m3fn and target.converts_e4m3fn


@triton.jit
def encode(v, MANTISSA: tl.constexpr, BIAS: tl.constexpr, UNSIGNED_ZERO: tl.constexpr):
    """Return the bits of float32 values no larger than the format's, rounded to the nearest, ties to even."""
    SHIFT: tl.constexpr = 23 - MANTISSA
    MAGIC: tl.constexpr = 24 - BIAS - MANTISSA  # exponent of 2^23 steps of the subnormals
    bits = v.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = (size + ((1 << (SHIFT - 1)) - 1) + ((size >> SHIFT) & 1)) >> SHIFT
    normal -= (127 - BIAS) << MANTISSA
    # Adding 2^23 steps leaves no bits below a step: the addition rounds.
    magic = tl.full(v.shape, (127 + MAGIC) << 23, tl.int32)
    shifted = size.to(tl.float32, bitcast=True) + magic.to(tl.float32, bitcast=True)
    small = shifted.to(tl.int32, bitcast=True) - magic
    code = tl.where(size < ((128 - BIAS) << 23), small, normal)
    sign = (bits >> 24) & 0x80
    if UNSIGNED_ZERO:
        code = tl.where(code == 0, 0, code | sign)
        code = tl.where(size > 0x7F800000, 0x80, code)
    else:
        code = tl.where(size > 0x7F800000, 0x7F, code) | sign
    return code.to(tl.uint8)


@triton.jit
def to_fp8(
    v,
    scale,
    LIMIT: tl.constexpr,
    MANTISSA: tl.constexpr,
    BIAS: tl.constexpr,
    UNSIGNED_ZERO: tl.constexpr,
    HARD: tl.constexpr,
):
    """Return float32 values over a scale as 8-bit floats, or as their bits if not HARD; NaN stays NaN."""
    v = v * tl.div_rn(1.0, scale)
    v = tl.where(v > LIMIT, LIMIT, v)
    v = tl.where(v < -LIMIT, -LIMIT, v)
    if HARD:
        return v.to(tl.float8e4nv)
    else:  # noqa: RET505 - Triton compiles both branches of what is not an else
        return encode(v, MANTISSA, BIAS, UNSIGNED_ZERO)


@triton.jit
def token_scale(v, bound_ptr, LIMIT: tl.constexpr, LEAST: tl.constexpr):
    """Return the scale of a row of float32 values; zeros stand for what is outside."""
    # As integers, sizes of floats are in order, and NaN is above all of them: the largest one shows it.
    size = v.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    largest = tl.max(size, axis=0).to(tl.float32, bitcast=True)
    if bound_ptr is not None:
        bound = tl.load(bound_ptr)
        largest = tl.where((largest <= bound) | (largest != largest), largest, bound)
    scale = tl.div_rn(largest, LIMIT)
    return tl.where(scale < LEAST, LEAST, scale)
