"""Compiled programs around kernels that write: inputs and copies that are kept, values that are still pending."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graphs import needs_compiler
from torch import Tensor

from opdock import ir
from opdock.compile import observing
from opdock.ir import ops


def _copies(x: Tensor, r: Tensor) -> Any:
    return ops.fused_add_rms_norm.maybe_inplace(x.clone(), r + 0, None, 1e-5)


def _given(x: Tensor, r: Tensor) -> Any:
    return ops.fused_add_rms_norm.maybe_inplace(x, r, None, 1e-5)


def _one_copy(x: Tensor, r: Tensor) -> Any:
    return ops.fused_add_rms_norm.maybe_inplace(x.clone(), r, None, 1e-5)


@needs_compiler
@pytest.mark.compiler
@pytest.mark.parametrize("backend", ["opdock", "opdock_eager"])
@pytest.mark.parametrize("program", [_copies, _one_copy], ids=lambda p: p.__name__.strip("_"))
@pytest.mark.usefixtures("inductor", "in_place")
def test_a_copy_that_is_given_away_protects_its_source(program: Any, backend: str) -> None:
    """Passes before ours drop the copy: the graph is functional to them."""
    x, r = torch.randn(4, 8), torch.randn(4, 8)
    kept = x.clone(), r.clone()
    with torch.no_grad():
        got = torch.compile(program, backend=backend, fullgraph=True)(x, r)
    for a, b in zip(got, ir.native.fused_add_rms_norm(*kept, None, 1e-5), strict=True):
        torch.testing.assert_close(a, b)
    assert torch.equal(x, kept[0])
    if program is _copies:
        assert torch.equal(r, kept[1])


def test_inputs_that_are_given_away_are_written() -> None:
    """What maybe_inplace is for: no copy is made."""

    @ops.fused_add_rms_norm.register_impl("t_writes", inplace=True)
    def provider(
        x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> tuple[Tensor, Tensor]:
        torch.ops.t_compile.add_rms_norm_(x, x_residual, weight, epsilon)
        return x, x_residual

    ops.fused_add_rms_norm.set_default(["t_writes"])
    compiled = torch.compile(
        lambda x, r: ops.fused_add_rms_norm.maybe_inplace(x, r, None, 1e-5), backend="opdock_eager"
    )
    x, r = torch.randn(4, 8), torch.randn(4, 8)
    with torch.no_grad(), observing() as reports:
        y, total = compiled(x, r)
    assert reports[0].clones_left == 0
    assert (y.data_ptr(), total.data_ptr()) == (x.data_ptr(), r.data_ptr())


# -- what is read before an opaque kernel writes it, and used afterwards


def _product(x: Tensor, r: Tensor) -> Any:
    y = x * 2
    k = y + r
    z, _ = ops.fused_add_rms_norm(y, k, None, 1e-5)
    return z, k * z


def _scattered(x: Tensor, r: Tensor) -> Any:
    y = x * 2
    k = torch.slice_scatter(r, y[:1], 0, 2, 3)
    z, _ = ops.fused_add_rms_norm(y, k, None, 1e-5)
    return z, k + z


def _chosen(x: Tensor, r: Tensor) -> Any:
    y = x.softmax(-1)
    k = torch.where(r > 0, y, r)
    z, _ = ops.fused_add_rms_norm(y, k, None, 1e-5)
    return z, k + z


def _cached(x: Tensor, r: Tensor) -> Any:
    y = x * 2
    r[2:3].copy_(y[:1])
    z, _ = ops.fused_add_rms_norm(y, r, None, 1e-5)
    r.add_(z)
    return (z,)


def _written_by_the_user(x: Tensor, r: Tensor) -> Any:
    y = x * 1
    z = ops.rms_norm(y, None, 1e-5)
    torch.ops.t_compile.add_rms_norm_(y, r * 1, None, 1e-5)
    return y, z * 2


@needs_compiler
@pytest.mark.compiler
@pytest.mark.parametrize(
    "program", [_product, _scattered, _chosen, _cached, _written_by_the_user], ids=lambda p: p.__name__.strip("_")
)
@pytest.mark.usefixtures("inductor", "in_place")
def test_a_value_that_is_pending_when_a_kernel_writes_its_input_is_computed_before(program: Any) -> None:
    """Inductor computes element-wise values where they are used, which is too late there."""
    x, r = torch.randn(4, 8), torch.randn(4, 8)
    x2, r2 = x.clone(), r.clone()
    with torch.no_grad():
        got = torch.compile(program, backend="opdock", fullgraph=True)(x, r)
        ops.fused_add_rms_norm.set_default(["native"])
        for a, b in zip(got, program(x2, r2), strict=True):
            torch.testing.assert_close(a, b)
    torch.testing.assert_close(r, r2)
    assert torch.equal(x, x2)
