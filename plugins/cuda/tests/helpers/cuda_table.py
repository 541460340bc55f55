"""The ops of rows as a table: what comes in, how it goes out, the arguments of a call, the spans of the results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import cuda_spans as spans
import torch
from cuda_spans import Span
from torch import Tensor

STATIC_SCALE, BOUND = 0.01, 1.5


@dataclass(frozen=True)
class RowOp:
    """One op.

    Args:
        op: name of the IR op.
        kind: what comes in: ``plain``, ``add``, or the gated ``silu``, ``gelu``, ``tanh``.
        norm: whether it is normalised.
        out: ``same``, ``static`` or ``token``.
    """

    op: str
    kind: str
    norm: bool
    out: str

    @property
    def gated(self) -> bool:
        """Whether x has gates and ups."""
        return self.kind in ("silu", "gelu", "tanh")

    @property
    def in_place(self) -> bool:
        """Whether the kernel writes its activations."""
        return self.kind == "add" and self.out == "same"

    def variants(self) -> tuple[tuple[bool, float | None], ...]:
        """Return the pairs of weight or none, and bound or none."""
        weights = (True, False) if self.norm else (False,)
        bounds = (None, BOUND) if self.out == "token" else (None,)
        return tuple((w, b) for w in weights for b in bounds)

    def arguments(
        self, x: Tensor, residual: Tensor | None, weight: Tensor | None, scale: Tensor | None
    ) -> tuple[Any, ...]:
        """Return the arguments of the IR op; ``scale`` is the static one or the bound."""
        given: list[Any] = [x]
        if self.kind == "add":
            given.append(residual)
        if self.norm:
            given.append(weight)
            if self.out == "static":
                given += [scale, spans.EPSILON]
            else:
                given.append(spans.EPSILON)
                given += [scale] if self.out == "token" else []
        elif self.out != "same":
            given.append(scale)
        if self.kind in ("gelu", "tanh"):
            given.append("tanh" if self.kind == "tanh" else "none")
        return tuple(given)


ROW_OPS = (
    RowOp("rms_norm", "plain", norm=True, out="same"),
    RowOp("rms_norm_static_fp8_quant", "plain", norm=True, out="static"),
    RowOp("rms_norm_dynamic_per_token_fp8_quant", "plain", norm=True, out="token"),
    RowOp("fused_add_rms_norm", "add", norm=True, out="same"),
    RowOp("fused_add_rms_norm_static_fp8_quant", "add", norm=True, out="static"),
    RowOp("fused_add_rms_norm_dynamic_per_token_fp8_quant", "add", norm=True, out="token"),
    RowOp("silu_and_mul", "silu", norm=False, out="same"),
    RowOp("silu_and_mul_static_fp8_quant", "silu", norm=False, out="static"),
    RowOp("silu_and_mul_dynamic_per_token_fp8_quant", "silu", norm=False, out="token"),
    RowOp("gelu_and_mul", "gelu", norm=False, out="same"),
    RowOp("gelu_and_mul", "tanh", norm=False, out="same"),
    RowOp("static_scaled_fp8_quant", "plain", norm=False, out="static"),
    RowOp("dynamic_per_token_scaled_fp8_quant", "plain", norm=False, out="token"),
)


@dataclass
class Values:
    """What an op is called with, dense, and what is right for it; computed once for all layouts and providers.

    Args:
        op: the op.
        x: (rows, width), twice as wide for gated ones.
        residual: like x, where there is one.
        weight: (width,), for a norm.
    """

    op: RowOp
    x: Tensor
    residual: Tensor | None = None
    weight: Tensor | None = None
    _known: dict[Any, Span] = field(default_factory=dict)

    @classmethod
    def random(cls, op: RowOp, rows: int, hidden: int, dtype: torch.dtype, device: str) -> Values:
        """Return normal numbers, every eighth row with a magnitude of its own."""
        generator = torch.Generator(device).manual_seed(hidden)

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, device=device).to(dtype)

        x = draw(rows, 2 * hidden if op.gated else hidden)
        x[1::8] *= 0.03
        x[5::8] *= 3.0 if op.gated else 40.0
        return cls(op, x, draw(rows, hidden) if op.kind == "add" else None, draw(hidden) if op.norm else None)

    def rows(self, weighted: bool, fast: bool) -> Span:
        """Return the spans of what is returned or quantised."""
        key = weighted, fast and self.op.gated
        if key not in self._known:
            parts = [self._chunk(s, weighted, fast) for s in spans.chunks(*self.x.shape)]
            low, high = (torch.cat([p[n] for p in parts]) for n in (0, 1))
            self._known[key] = Span(low, high)
        return self._known[key]

    def _chunk(self, where: slice, weighted: bool, fast: bool) -> tuple[Tensor, Tensor]:
        x, op = self.x[where], self.op
        if op.gated:
            span = spans.gated(x, op.kind, fast=fast)
        elif op.norm:
            wide = x.float() if self.residual is None else x.float() + self.residual[where].float()
            span = spans.norm(wide, x.dtype, self.weight if weighted else None)
        else:
            span = Span(x, x)
        return span.low, span.high

    def total(self, rows: int) -> Tensor:
        """Return the sum, which is one number: summed in float32 and rounded."""
        assert self.residual is not None
        return (self.x[:rows].float() + self.residual[:rows].float()).to(self.x.dtype)


def comparisons(
    values: Values, rows: int, results: tuple[Tensor, ...], *, weighted: bool, bound: float | None, provider: str
) -> Iterator[tuple[str, Tensor, Span]]:
    """Yield what a call on the first rows returned, dense or not, in parts, each with a name and what is right."""
    op, dtype = values.op, values.x.dtype
    slack = 2.0**-22 if provider == "native" else 0.0  # torch's GPU code divides by multiplying with a reciprocal
    fast = dtype is not torch.float32 or provider == "triton"
    span = values.rows(weighted, fast).first(rows)
    width = span.low.shape[-1]
    flat = [r.reshape(rows, r.shape[-1]) for r in results]
    if op.kind == "add":
        total = values.total(rows)
        yield "the sum", flat[-1], Span(total, total)
    if op.out == "same":
        yield "y", flat[0], span
        return
    inverse = spans.reciprocal(torch.full((1,), STATIC_SCALE, device=span.low.device))
    if op.out == "token":
        inverse = spans.reciprocal(flat[1])
    for where in spans.chunks(rows, width):
        part = Span(span.low[where], span.high[where])
        if op.out == "token":
            yield "scales", flat[1][where], spans.scales(part, bound, slack=slack)
        one = inverse[where] if op.out == "token" else inverse
        yield "q", flat[0][where], spans.codes(part, one, slack=slack)


def faults(
    values: Values, rows: int, results: tuple[Tensor, ...], *, weighted: bool, bound: float | None, provider: str
) -> Iterator[str]:
    """Yield what is wrong with the results of a call on the first rows, in words."""
    for name, got, span in comparisons(values, rows, results, weighted=weighted, bound=bound, provider=provider):
        said = spans.wrong(got, span)
        if said:
            yield f"{name}: {said}"
