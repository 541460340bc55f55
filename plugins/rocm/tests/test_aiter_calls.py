"""opdock_rocm.aiter_providers: what is passed to AITER's functions, each with the parameters of two of its releases.

AITER itself cannot be imported without ROCm: functions of its signatures compute what its documentation says.
"""

# ruff: noqa: A002 - the parameters are AITER's
from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from opdock import ir
from opdock_rocm import aiter_library


def _norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    assert x.ndim == 2
    return ir.registry["rms_norm"].native(x, weight, epsilon)


def fwd_2025(input: Tensor, weight: Tensor, epsilon: float, use_model_sensitive_rmsnorm: int) -> Tensor:
    assert use_model_sensitive_rmsnorm == 0
    return _norm(input, weight, epsilon)


def fwd_2026(input: Tensor, weight: Tensor, epsilon: float, use_model_sensitive_rmsnorm: int = 0) -> Tensor:
    return _norm(input, weight, epsilon)


def add_2025(
    out: Tensor,
    input: Tensor,
    residual_in: Tensor,
    residual_out: Tensor,
    weight: Tensor,
    epsilon: float,
    use_model_sensitive_rmsnorm: int,
) -> None:
    assert use_model_sensitive_rmsnorm == 0
    y, total = ir.registry["fused_add_rms_norm"].native(input, residual_in, weight, epsilon)
    out.copy_(y)
    residual_out.copy_(total)


def add_2026(
    out: Tensor,
    input: Tensor,
    residual_in: Tensor,
    residual_out: Tensor,
    weight: Tensor,
    epsilon: float,
    gemma_norm: bool = False,
    use_model_sensitive_rmsnorm: int = 0,
) -> None:
    assert not gemma_norm
    add_2025(out, input, residual_in, residual_out, weight, epsilon, use_model_sensitive_rmsnorm)


@pytest.fixture(params=[(fwd_2025, add_2025), (fwd_2026, add_2026)], ids=["2025", "2026"])
def called(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module of AITER's name with functions of the signatures of one release."""
    module: Any = ModuleType("aiter")
    module.rmsnorm2d_fwd, module.rmsnorm2d_fwd_with_add = request.param
    monkeypatch.setitem(sys.modules, "aiter", module)
    aiter_library.function.cache_clear()
    yield
    aiter_library.function.cache_clear()


@pytest.mark.usefixtures("called")
@pytest.mark.parametrize("shape", [(4, 64), (2, 3, 64)])
def test_norms_are_called_with_rows_and_give_new_tensors_of_the_shape(shape: tuple[int, ...]) -> None:
    x, residual = (torch.randn(shape).bfloat16() for _ in range(2))
    weight = torch.randn(64).bfloat16()
    kept = x.clone(), residual.clone()
    norm, add = aiter_library.rms_norm, aiter_library.fused_add_rms_norm
    assert torch.equal(norm(x, weight, 1e-6), ir.registry["rms_norm"].native(x, weight, 1e-6))
    want = ir.registry["fused_add_rms_norm"].native(x, residual, weight, 1e-6)
    for mine, theirs in zip(add(x, residual, weight, 1e-6), want, strict=True):
        assert torch.equal(mine, theirs)
    assert torch.equal(x, kept[0])
    assert torch.equal(residual, kept[1])
