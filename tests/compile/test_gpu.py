"""Compiled code on a GPU: Triton kernels inlined, opaque writes, CUDA graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from opdock.compile import observing
from opdock.ir import ops

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use; none is here"),
]
norm = ops.fused_add_rms_norm


def _kernel() -> Any:
    triton = pytest.importorskip("triton", reason="needs Triton")
    tl = triton.language

    @triton.jit
    def add_norm(x, residual, weight, hidden, epsilon, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        row, columns = tl.program_id(0) * hidden, tl.arange(0, BLOCK)
        inside = columns < hidden
        total = tl.load(x + row + columns, mask=inside, other=0.0).to(tl.float32)
        total += tl.load(residual + row + columns, mask=inside, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(total * total) / hidden + epsilon)
        y = total * scale * tl.load(weight + columns, mask=inside).to(tl.float32)
        tl.store(residual + row + columns, total, mask=inside)
        tl.store(x + row + columns, y, mask=inside)

    return add_norm


@pytest.fixture
def inlined() -> None:
    """An in-place provider of one Triton kernel that compiled code sees through."""
    kernel = _kernel()

    @norm.register_impl("t_triton", inplace=True)
    def provider(
        x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> tuple[Tensor, Tensor]:
        hidden = x.shape[-1]
        torch.library.wrap_triton(kernel)[(x.numel() // hidden,)](x, x_residual, weight, hidden, epsilon, BLOCK=64)
        return x, x_residual

    norm.set_default(["t_triton"])


def _program(x: Tensor, r: Tensor, w: Tensor) -> Any:
    y, total = norm(x, r, w, 1e-5)
    z, total = norm.maybe_inplace(y * 2, total, w, 1e-5)
    return z + x, total


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # torch warms its graphs up with one
@pytest.mark.usefixtures("inlined", "inductor")
def test_an_inlined_triton_kernel_agrees_and_keeps_the_inputs(dynamic: bool, mode: str | None) -> None:
    """The first norm keeps its inputs, which are used again; the second may write into what it is given."""
    compiled = torch.compile(_program, backend="opdock", fullgraph=True, dynamic=dynamic, mode=mode)
    w = torch.rand(64, device="cuda")
    with torch.no_grad(), observing() as reports:
        for tokens in (2, 7, 64):
            x, r = (torch.randn(tokens, 64, device="cuda") for _ in range(2))
            kept = x.clone(), r.clone()
            norm.set_default(["native"])
            want = _program(x, r, w)
            norm.set_default(["t_triton"])
            for _ in range(3):
                for a, b in zip(compiled(x, r, w), want, strict=True):
                    torch.testing.assert_close(a, b)
            assert torch.equal(x, kept[0])
            assert torch.equal(r, kept[1])
    assert all(r.clones_left == 2 for r in reports)


@pytest.mark.usefixtures("in_place", "inductor")
def test_an_opaque_write_agrees_and_keeps_the_inputs() -> None:
    compiled = torch.compile(_program, backend="opdock", fullgraph=True)
    w = torch.rand(64, device="cuda")
    x, r = (torch.randn(5, 64, device="cuda") for _ in range(2))
    kept = x.clone(), r.clone()
    with torch.no_grad():
        for a, b in zip(compiled(x, r, w), _program(x, r, w), strict=True):
            torch.testing.assert_close(a, b)
    assert torch.equal(x, kept[0])
    assert torch.equal(r, kept[1])
