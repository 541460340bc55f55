"""Which results are right: the ops in float64, rounded where their definitions round, as the span that is allowed.

A kernel computes in float32 between two rounding points, so it may round what is off by that much: a result is right
between the roundings of the least and the largest number that float32 may have made of the exact one. Most spans are
one number; where a rounding boundary is near, two neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

EPSILON = 1e-5
FP8_MAX = 448.0
LEAST_SCALE = 1.0 / (FP8_MAX * 512.0)
ULP = 2.0**-23
"""One unit in the last place of a float32 near 1."""
TINY = 2.0**-126
"""Of a float32 as small as this nothing is promised."""
NORM_ULPS = 16
"""Sums of up to 64 squares one after the other and 9 in a tree lose 37 ulp at worst, the root halves it; rsqrt 2."""
CHUNK = 1 << 23
"""Elements that are looked at at once, for float64 is large."""


@dataclass(frozen=True)
class Span:
    """The least and the largest right result of each element."""

    low: Tensor
    high: Tensor

    def first(self, rows: int) -> Span:
        """Return the span of the first rows."""
        return Span(self.low[:rows], self.high[:rows])


def chunks(rows: int, width: int) -> list[slice]:
    """Return slices of rows, each of about ``CHUNK`` elements."""
    step = max(1, CHUNK // max(width, 1))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def rounded(exact: Tensor, error: Tensor, dtype: torch.dtype) -> Span:
    """Return the roundings to ``dtype`` of what float32 makes of ``exact``, float64, with an absolute error."""
    error = error + TINY
    return Span((exact - error).float().to(dtype), (exact + error).float().to(dtype))


def times(span: Span, factor: Tensor) -> Span:
    """Return the products with exact numbers of the same dtype, each rounded to it once."""
    low, high = span.low.float() * factor.float(), span.high.float() * factor.float()
    return Span(torch.minimum(low, high).to(factor.dtype), torch.maximum(low, high).to(factor.dtype))


def norm(wide: Tensor, dtype: torch.dtype, weight: Tensor | None) -> Span:
    """Return the spans of the RMS norm of float32 rows: rounded, and rounded again behind the weight."""
    x = wide.double()
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON)
    span = rounded(y, y.abs() * (NORM_ULPS * ULP), dtype)
    return span if weight is None else times(span, weight.expand(y.shape))


def gated(x: Tensor, kind: str, *, fast: bool) -> Span:
    """Return the spans of an activation of gates times ups: rounded in between and behind.

    Args:
        x: (rows, 2 * d), gates and ups.
        kind: ``silu``, ``gelu`` or ``tanh``.
        fast: whether exp may be that of the hardware, 2 + 1.173 |argument| ulp, as in results of 16 bits.
    """
    half = x.shape[-1] // 2
    gate, up = x[..., :half].double(), x[..., half:]
    if kind == "silu":  # exp 2 ulp, a sum and a quotient; the fast quotient 2
        y = gate * torch.sigmoid(gate)
        error = y.abs() * ((6 + 1.2 * gate.abs()) if fast else 4) * ULP
    elif kind == "gelu":  # erf and 1 + erf, 4 halves of an ulp of 1, where they cancel
        y = torch.nn.functional.gelu(gate)
        error = (y.abs() + gate.abs()) * 2 * ULP
    else:  # as gelu; as a quotient, exp and its argument
        y = torch.nn.functional.gelu(gate, approximate="tanh")
        argument = 1.5957691216057308 * (gate + 0.044715 * gate.pow(3))
        error = (y.abs() * (6 + 4 * argument.abs()) + gate.abs() * 2) * ULP
    return times(rounded(y, error, x.dtype), up)


def rotated(heads: Tensor, cos: Tensor, sin: Tensor, *, neox: bool) -> Span:
    """Return the spans of heads, (tokens, heads, rot), turned by angles, (tokens, rot / 2): rounded once.

    Two products and their difference in float32, with a fused one or not, lose one ulp of the products.
    """
    wide, c, s = heads.double(), cos.double().unsqueeze(1), sin.double().unsqueeze(1)
    half = c.shape[-1]
    a, b = (wide[..., :half], wide[..., half:]) if neox else (wide[..., ::2], wide[..., 1::2])
    y, error = torch.empty_like(wide), torch.empty_like(wide)
    parts = ((a * c, -(b * s)), (b * c, a * s))
    for n, (one, two) in enumerate(parts):
        where = slice(n * half, (n + 1) * half) if neox else slice(n, None, 2)
        y[..., where], error[..., where] = one + two, (one.abs() + two.abs()) * ULP
    return rounded(y, error, heads.dtype)


def reciprocal(scale: Tensor) -> Tensor:
    """Return the float32 nearest to 1 / scale."""
    return (1.0 / scale.double()).float()


def codes(span: Span, inverse: Tensor, *, slack: float) -> Span:
    """Return the spans of 8-bit codes, as numbers, of rows times the reciprocal of a scale.

    Args:
        span: of the rows.
        inverse: float32, of one scale or one for each row.
        slack: how far the reciprocal and the product may be off, relatively; 0 where both are rounded exactly.
    """
    low, high = span.low.float() * inverse, span.high.float() * inverse
    if slack:
        low, high = low - low.abs() * slack, high + high.abs() * slack
    low, high = (v.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).float() for v in (low, high))
    return Span(low, high)


def scales(span: Span, bound: float | None, *, slack: float) -> Span:
    """Return the spans of the scale of each row, (rows, 1), of its largest element."""
    least = torch.maximum(torch.maximum(span.low, -span.high), torch.zeros_like(span.low))
    ends = []
    for largest, sign in ((least, -1), (torch.maximum(-span.low, span.high), 1)):
        top = largest.amax(-1, keepdim=True).double()
        if bound is not None:
            top = top.clamp(max=torch.tensor(bound, dtype=torch.float32).item())
        ends.append(((top / FP8_MAX).float() * (1 + sign * slack)).clamp(min=LEAST_SCALE))
    return Span(*ends)


def right(got: Tensor, span: Span) -> Tensor:
    """Return whether all elements are inside of the span, as a tensor: nobody waits for the device."""
    if got.shape != span.low.shape:
        return torch.zeros((), dtype=torch.bool, device=got.device)
    mine = got.float() if got.dtype is torch.float8_e4m3fn else got
    return ((mine >= span.low) & (mine <= span.high)).all()


def wrong(got: Tensor, span: Span) -> str:
    """Return how many elements are outside of the span, and the first one; "" where there is none."""
    if got.shape != span.low.shape:
        return f"shape {tuple(got.shape)}, should be {tuple(span.low.shape)}"
    if not got.numel():
        return ""
    mine = got.float() if got.dtype is torch.float8_e4m3fn else got
    inside = (mine >= span.low) & (mine <= span.high)
    if bool(inside.all()):
        return ""
    at = tuple(int(i) for i in (~inside).nonzero()[0])
    low, high = float(span.low[at]), float(span.high[at])
    return f"{int((~inside).sum())} of {got.numel()} wrong, first {at}: {float(mine[at])!r} not in [{low!r}, {high!r}]"
