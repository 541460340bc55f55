"""The kernels of rows against float64: every dtype, width, number of rows and layout, with guards around all inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import cuda_exact as exact
import cuda_placing as placing
import pytest
import torch
from cuda_exact import Near
from cuda_placing import place
from torch import Tensor

from opdock_cuda import ops

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("kernels")]
DEVICE = "cuda"
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
HIDDEN = (1, 46, 80, 769, 2048, 3420, 4096, 7168, 16384)
TOKENS = (0, 1, 2, 7, 257)
UB = 1.5

Checks = Iterator["Near"]


class Inputs:
    """What one call is made from; every tensor that a kernel reads lies between guards."""

    def __init__(self, tokens: int, width: int, dtype: torch.dtype, layout: str) -> None:
        self.tokens, self.dtype, self.layout = tokens, dtype, layout
        self.placed: list[placing.Placed] = []
        self.written: list[placing.Placed] = []
        self.x = self.rows(width)

    def rows(self, width: int, *, written: bool = False) -> Tensor:
        values = torch.randn(self.tokens, width, device=DEVICE).mul_(1.0).to(self.dtype)
        made = place(values, self.layout)
        (self.written if written else self.placed).append(made)
        return made.x

    def weight(self) -> Tensor:
        # A weight may lie at an odd offset too, alone or with x.
        layout = "odd offset" if self.layout in ("odd offset", "padded") else "dense"
        made = place(torch.randn(1, self.x.shape[-1], device=DEVICE).to(self.dtype), layout)
        self.placed.append(made)
        return made.x[0]

    def scale(self, value: float = 0.01) -> Tensor:
        made = place(torch.full((1, 1), value, device=DEVICE), "odd offset")
        self.placed.append(made)
        return made.x.view(1)

    def check_guards(self, what: str) -> None:
        assert all(p.untouched() for p in self.placed), f"{what}: an input was written"
        assert all(p.untouched_outside() for p in self.written), f"{what}: memory outside of an activation was written"


def rms_norm(t: Inputs) -> Checks:
    for weight in (t.weight(), None):
        got = ops.rms_norm(t.x, weight, exact.EPSILON)
        yield Near("y", got, exact.rms_norm(t.x, weight), *exact.norm_tolerance(t.dtype, weight))


def fused_add_rms_norm_(t: Inputs) -> Checks:
    for weight in (t.weight(), None):
        x, residual = t.rows(t.x.shape[-1], written=True), t.rows(t.x.shape[-1], written=True)
        total = x.double() + residual.double()
        ops.fused_add_rms_norm_(x, residual, weight, exact.EPSILON)
        yield Near("", x, exact.rms_norm(total, weight), *exact.norm_tolerance(t.dtype, weight))
        yield Near("", residual, total, exact.half_step(t.dtype) * 1.01, exact.smallest(t.dtype))


def fused_add_rms_norm(t: Inputs) -> Checks:
    for weight in (t.weight(), None):
        residual = t.rows(t.x.shape[-1])
        total = t.x.double() + residual.double()
        y, added = ops.fused_add_rms_norm(t.x, residual, weight, exact.EPSILON)
        yield Near("y", y, exact.rms_norm(total, weight), *exact.norm_tolerance(t.dtype, weight))
        yield Near("sum", added, total, exact.half_step(t.dtype) * 1.01, exact.smallest(t.dtype))


def rms_norm_static_fp8(t: Inputs) -> Checks:
    weight, scale = t.weight(), t.scale()
    q = ops.rms_norm_static_fp8(t.x, weight, scale, exact.EPSILON)
    y = exact.rms_norm(t.x, weight)
    yield exact.quantised("q", q, y, scale.double(), exact.norm_tolerance(t.dtype, weight))


def rms_norm_token_fp8(t: Inputs) -> Checks:
    weight = t.weight()
    for bound in (None, UB):
        q, scales = ops.rms_norm_token_fp8(t.x, weight, exact.EPSILON, None if bound is None else t.scale(bound))
        yield from _per_token(q, scales, exact.rms_norm(t.x, weight), bound, exact.norm_tolerance(t.dtype, weight))


def add_rms_norm_static_fp8(t: Inputs) -> Checks:
    weight, scale, residual = t.weight(), t.scale(), t.rows(t.x.shape[-1])
    total = t.x.double() + residual.double()
    q, added = ops.add_rms_norm_static_fp8(t.x, residual, weight, scale, exact.EPSILON)
    y = exact.rms_norm(total, weight)
    yield exact.quantised("q", q, y, scale.double(), exact.norm_tolerance(t.dtype, weight))
    yield Near("sum", added, total, exact.half_step(t.dtype) * 1.01, exact.smallest(t.dtype))


def add_rms_norm_token_fp8(t: Inputs) -> Checks:
    weight, residual = t.weight(), t.rows(t.x.shape[-1])
    total = t.x.double() + residual.double()
    q, scales, added = ops.add_rms_norm_token_fp8(t.x, residual, weight, exact.EPSILON)
    yield from _per_token(q, scales, exact.rms_norm(total, weight), None, exact.norm_tolerance(t.dtype, weight))
    yield Near("sum", added, total, exact.half_step(t.dtype) * 1.01, exact.smallest(t.dtype))


def silu_and_mul(t: Inputs) -> Checks:
    yield Near("y", ops.silu_and_mul(t.x), exact.silu_and_mul(t.x), *exact.gated_tolerance(t.dtype))


def gelu_and_mul(t: Inputs) -> Checks:
    for kind in ("none", "tanh"):
        yield Near(kind, ops.gelu_and_mul(t.x, kind), exact.gelu_and_mul(t.x, kind), *exact.gated_tolerance(t.dtype))


def silu_and_mul_static_fp8(t: Inputs) -> Checks:
    scale = t.scale()
    q = ops.silu_and_mul_static_fp8(t.x, scale)
    yield exact.quantised("q", q, exact.silu_and_mul(t.x), scale.double(), exact.gated_tolerance(t.dtype))


def silu_and_mul_token_fp8(t: Inputs) -> Checks:
    for bound in (None, UB):
        q, scales = ops.silu_and_mul_token_fp8(t.x, None if bound is None else t.scale(bound))
        yield from _per_token(q, scales, exact.silu_and_mul(t.x), bound, exact.gated_tolerance(t.dtype))


def static_fp8(t: Inputs) -> Checks:
    scale = t.scale()
    q = ops.static_fp8(t.x, scale)
    yield exact.quantised("q", q, t.x.double(), scale.double(), (0.0, 0.0))


def token_fp8(t: Inputs) -> Checks:
    for bound in (None, UB):
        q, scales = ops.token_fp8(t.x, None if bound is None else t.scale(bound))
        yield from _per_token(q, scales, t.x.double(), bound, (0.0, 0.0))


def _per_token(q: Tensor, scales: Tensor, y: Tensor, bound: float | None, before: tuple[float, float]) -> Checks:
    # The scale is as far off as the row's largest element; the rest is judged with the scale that was used.
    yield Near("scales", scales, exact.token_scales(y, bound), before[0] + 2e-7, before[1] / exact.FP8_MAX)
    yield exact.quantised("q", q, y, scales.double(), before)


GATED = (silu_and_mul, gelu_and_mul, silu_and_mul_static_fp8, silu_and_mul_token_fp8)
KERNELS: tuple[Callable[[Inputs], Checks], ...] = (
    rms_norm,
    fused_add_rms_norm_,
    fused_add_rms_norm,
    rms_norm_static_fp8,
    rms_norm_token_fp8,
    add_rms_norm_static_fp8,
    add_rms_norm_token_fp8,
    *GATED,
    static_fp8,
    token_fp8,
)


@pytest.mark.parametrize("layout", placing.LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__)
def test_a_kernel_is_what_the_formula_says(kernel: Callable[[Inputs], Checks], dtype: torch.dtype, layout: str) -> None:
    torch.manual_seed(0)
    for hidden in HIDDEN:
        for tokens in TOKENS if layout in ("dense", "odd offset", "heads") else (1, 7):
            what = f"{tokens} x {hidden}, {dtype}, {layout}"
            t = Inputs(tokens, hidden * 2 if kernel in GATED else hidden, dtype, layout)
            for check in kernel(t):
                check.check(what)
            t.check_guards(what)


@pytest.mark.parametrize("hidden", [64, 769, 4096])
@pytest.mark.parametrize("factor", [300.0, 30000.0])
def test_squares_and_sums_beyond_float16_are_no_infinities(factor: float, hidden: int) -> None:
    torch.manual_seed(0)
    x = (torch.rand(7, hidden, device=DEVICE) + 1).mul(factor).half()
    near = exact.norm_tolerance(x.dtype, None)
    Near("y", ops.rms_norm(x, None, exact.EPSILON), exact.rms_norm(x, None), *near).check(f"{factor} x {hidden}")
    y, total = ops.fused_add_rms_norm_(x.clone(), x.clone(), None, exact.EPSILON)
    Near("y", y, exact.rms_norm(2 * x.double(), None), *near).check(f"the sum, {factor} x {hidden}")
    assert total.equal(x + x)  # the residual itself is rounded to float16, and may be infinite


@pytest.mark.parametrize("shape", [(0, 64), (3, 0, 64), (0, 3, 64), (2, 3, 0)])
@pytest.mark.parametrize("kernel", ["rms_norm", "silu_and_mul", "gelu_and_mul", "static_fp8", "token_fp8"])
def test_no_rows_launch_nothing_and_give_no_rows(kernel: str, shape: tuple[int, ...]) -> None:
    x = torch.empty(shape, dtype=torch.bfloat16, device=DEVICE)
    if kernel == "token_fp8" and shape[-1] == 0:
        with pytest.raises(ops.ArgumentError, match="rows without elements"):
            ops.token_fp8(x)
        return
    got = getattr(ops, kernel)(x, *([torch.ones(1, device=DEVICE)] if kernel == "static_fp8" else []))
    first = got[0] if isinstance(got, tuple) else got
    width = shape[-1] // 2 if "and_mul" in kernel else shape[-1]
    assert first.shape == (*shape[:-1], width) and first.is_contiguous()
    if isinstance(got, tuple):
        assert got[1].shape == (*shape[:-1], 1)
    torch.ones(1, device=DEVICE).item()  # no error is left for a later call
