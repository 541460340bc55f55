"""Every registration of a test is taken back, nothing is compiled before it, and Inductor's cache is empty."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor.utils import fresh_cache
from torch.library import Library

from opdock import context, ir

sys.path.insert(0, str(Path(__file__).parent))  # for graphs.py, which the tests here share


@pytest.fixture(autouse=True)
def _fresh(taken_back: None) -> Iterator[None]:
    """Compile nothing before, and on one thread."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    context.install_fusions([])
    torch.set_num_threads(threads)
    torch._dynamo.reset()


@pytest.fixture
def inductor() -> Iterator[None]:
    """Give Inductor a cache of its own."""
    with fresh_cache():
        yield


_LIBRARY = Library("t_compile", "FRAGMENT")
_LIBRARY.define("add_rms_norm_(Tensor(a!) x, Tensor(b!) x_residual, Tensor? weight, float epsilon) -> ()")
_LIBRARY.define("rms_norm(Tensor x, Tensor? weight, float epsilon) -> Tensor")
_LIBRARY.define("permuted(Tensor x) -> Tensor")
_LIBRARY.define("writes_both_(Tensor(a!) x, Tensor x_residual) -> ()")


def _add_rms_norm_(x: torch.Tensor, x_residual: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> None:
    y, total = ir.native.fused_add_rms_norm(x, x_residual, weight, epsilon)
    x.copy_(y)
    x_residual.copy_(total)


_LIBRARY.impl("add_rms_norm_", _add_rms_norm_, "CompositeExplicitAutograd")
torch.library.register_fake("t_compile::add_rms_norm_", lambda *_: None, lib=_LIBRARY)
_LIBRARY.impl("rms_norm", ir.native.rms_norm, "CompositeExplicitAutograd")
torch.library.register_fake("t_compile::rms_norm", lambda x, w, e: torch.empty_like(x), lib=_LIBRARY)
# The fake says dense, the kernel makes columns.
_LIBRARY.impl("permuted", lambda x: (x + 1).t().contiguous().t(), "CompositeExplicitAutograd")
torch.library.register_fake("t_compile::permuted", torch.empty_like, lib=_LIBRARY)


_LIBRARY.impl("writes_both_", lambda x, r: (x.add_(r), r.mul_(2), None)[2], "CompositeExplicitAutograd")
torch.library.register_fake("t_compile::writes_both_", lambda *_: None, lib=_LIBRARY)


@pytest.fixture
def in_place() -> str:
    """Register an in-place provider of fused_add_rms_norm that is one opaque torch op, and put it first."""

    @ir.ops.fused_add_rms_norm.register_impl("t_kernel", inplace=True, supports_args=_no_variance_size)
    def provider(
        x: torch.Tensor,
        x_residual: torch.Tensor,
        weight: torch.Tensor | None,
        epsilon: float,
        variance_size: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        torch.ops.t_compile.add_rms_norm_(x, x_residual, weight, epsilon)
        return x, x_residual

    ir.ops.fused_add_rms_norm.set_default(["t_kernel", "native"])
    return "t_kernel"


def _no_variance_size(x: Any, x_residual: Any, weight: Any, epsilon: float, variance_size: int | None = None) -> Any:
    return variance_size is None or "variance_size"
