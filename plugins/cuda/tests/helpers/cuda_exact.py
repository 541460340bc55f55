"""The ops in float64, from their formulas, and how far a kernel may be from them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

EPSILON = 1e-5
FP8_MAX = 448.0
LEAST_SCALE = 1.0 / (FP8_MAX * 512.0)


@dataclass
class Near:
    """A result, what it should be, and by how much each element may differ: ``rtol * |exact| + atol``."""

    name: str
    got: Tensor
    exact: Tensor
    rtol: float
    atol: float

    def check(self, what: str) -> None:
        """Raise AssertionError with the worst element."""
        assert self.got.shape == self.exact.shape, (what, self.name, self.got.shape, self.exact.shape)
        assert self.got.is_contiguous() or not self.name, (what, self.name, self.got.stride())
        if self.got.numel() == 0:
            return
        got, allowed = self.got.double(), self.rtol * self.exact.abs() + self.atol
        excess = ((got - self.exact).abs() / allowed).nan_to_num(nan=math.inf)
        worst = int(excess.argmax())
        assert float(excess.max()) <= 1.0, (
            f"{what}: {self.name} is {float(got.flatten()[worst])!r} at {worst}, should be "
            f"{float(self.exact.flatten()[worst])!r}; {float(excess.max()):.2f} times what is allowed"
        )


def half_step(dtype: torch.dtype) -> float:
    """Return how far rounding to ``dtype`` may move a number, relatively."""
    return torch.finfo(dtype).eps / 2


def smallest(dtype: torch.dtype) -> float:
    """Return how far rounding may move a number that is too small for the relative bound."""
    return torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps


def rms_norm(x: Tensor, weight: Tensor | None) -> Tensor:
    wide = x.double()
    y = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPSILON)
    return y if weight is None else y * weight.double()


def norm_tolerance(dtype: torch.dtype, weight: Tensor | None) -> tuple[float, float]:
    """Rounded before and after the weight; the sum of squares and rsqrt in float32 are 2e-6 off at most."""
    return (2 if weight is not None else 1) * half_step(dtype) * 1.01 + 2e-6, 8 * smallest(dtype)


def silu_and_mul(x: Tensor) -> Tensor:
    gate, up = x.double().chunk(2, -1)
    return gate * torch.sigmoid(gate) * up


def gelu_and_mul(x: Tensor, approximate: str) -> Tensor:
    gate, up = x.double().chunk(2, -1)
    return torch.nn.functional.gelu(gate, approximate=approximate) * up


def gated_tolerance(dtype: torch.dtype) -> tuple[float, float]:
    """Rounded twice; and what float32 loses where 1 + erf or 1 + tanh cancels, times |gate * up| of up to 25."""
    return 2 * half_step(dtype) * 1.01 + 2e-6, 8 * smallest(dtype) + 2e-6


def quantised(name: str, q: Tensor, y: Tensor, scale: Tensor | float, before: tuple[float, float]) -> Near:
    """Return the check of ``q``: the next 8-bit float or its neighbour where y's own tolerance reaches across."""
    scaled = (y / scale).clamp(-FP8_MAX, FP8_MAX)
    low = float(torch.as_tensor(scale, dtype=torch.float64).min()) if torch.as_tensor(scale).numel() else 1.0
    return Near(name, q.float(), scaled, 2.0**-4 + before[0] + 1e-5, 2.0**-10 + before[1] / low + 1e-7)


def token_scales(y: Tensor, bound: float | None = None) -> Tensor:
    largest = y.abs().amax(-1, keepdim=True)
    if bound is not None:
        largest = largest.clamp(max=bound)
    return (largest / FP8_MAX).clamp(min=LEAST_SCALE)


def rotary(x: Tensor, positions: Tensor, cache: Tensor, head_size: int, *, neox: bool) -> Tensor:
    heads = x.double().reshape(x.shape[0], x.shape[1:].numel() // head_size, head_size).clone()
    cos, sin = cache.double()[positions.long()].unsqueeze(1).chunk(2, -1)
    half = cos.shape[-1]
    a, b = (
        (heads[..., :half], heads[..., half : 2 * half])
        if neox
        else (heads[..., : 2 * half : 2], heads[..., 1 : 2 * half : 2])
    )
    first, second = a * cos - b * sin, b * cos + a * sin
    a.copy_(first), b.copy_(second)
    return heads.reshape(x.shape)
