"""opdock_rocm.aiter_library and its predicates: the functions as AITER's releases have them, and what is passed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from opdock_rocm import aiter_predicates
from opdock_rocm.aiter_library import PARAMETERS, mismatch, why_not, why_not_on

BF16, F32 = torch.bfloat16, torch.float32

# The parameters as aiter/ops/rmsnorm.py has them, in three releases and in a fork.


def norm_2025(input: Tensor, weight: Tensor, epsilon: float, use_model_sensitive_rmsnorm: int) -> Any: ...  # noqa: A002
def norm_2026(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    epsilon: float,
    use_model_sensitive_rmsnorm: int = 0,
) -> Any: ...


def norm_fork(input: Tensor, weight: Tensor, epsilon: float, out: Tensor) -> None: ...  # noqa: A002
def norm_wrapped(*args: Any, **kwargs: Any) -> Any: ...


def add_2025(
    out: Tensor,
    input: Tensor,  # noqa: A002
    residual_in: Tensor,
    residual_out: Tensor,
    weight: Tensor,
    epsilon: float,
    use_model_sensitive_rmsnorm: int,
) -> None: ...


def add_2026(
    out: Tensor,
    input: Tensor,  # noqa: A002
    residual_in: Tensor,
    residual_out: Tensor,
    weight: Tensor,
    epsilon: float,
    gemma_norm: bool = False,
    use_model_sensitive_rmsnorm: int = 0,
) -> None: ...


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("rmsnorm2d_fwd", norm_2025),
        ("rmsnorm2d_fwd", norm_2026),
        ("rmsnorm2d_fwd_with_add", add_2025),
        ("rmsnorm2d_fwd_with_add", add_2026),
    ],
)
def test_the_functions_of_aiters_releases_can_be_called(name: str, function: Any) -> None:
    assert mismatch(name, function) == ""


@pytest.mark.parametrize(
    ("name", "function", "reason"),
    [
        ("rmsnorm2d_fwd", norm_fork, "aiter.rmsnorm2d_fwd needs out too"),
        ("rmsnorm2d_fwd", None, "this AITER has no rmsnorm2d_fwd"),
        (
            "rmsnorm2d_fwd",
            norm_wrapped,
            "aiter.rmsnorm2d_fwd takes (args, kwargs), and (input, weight, epsilon) is passed",
        ),
        (
            "rmsnorm2d_fwd_with_add",
            norm_2026,
            "(out, input, residual_in, residual_out, weight, epsilon) is passed",
        ),
    ],
)
def test_functions_that_changed_are_declined_with_what_differs(name: str, function: Any, reason: str) -> None:
    assert reason in mismatch(name, function)


def test_without_aiter_or_on_another_series_that_is_said() -> None:
    assert why_not() == "AITER is not installed: see github.com/ROCm/aiter"
    assert why_not_on("gfx942") == why_not_on("gfx950") == ""
    assert why_not_on("gfx1100") == "AITER is used on gfx94x and gfx95x, and the GPU is gfx1100"
    assert set(PARAMETERS) == {"rmsnorm2d_fwd", "rmsnorm2d_fwd_with_add"}


def _gpu(*shape: int, dtype: torch.dtype = BF16) -> Any:
    return torch.empty(shape, dtype=dtype, device="cuda:0")


def test_dense_rows_in_16_bits_with_a_weight_of_their_dtype_are_taken() -> None:
    with FakeTensorMode():
        for dtype in (torch.float16, BF16):
            x, weight = _gpu(7, 4096, dtype=dtype), _gpu(4096, dtype=dtype)
            assert aiter_predicates.rms_norm(x, weight, 1e-6) is True
            assert aiter_predicates.fused_add_rms_norm(x, x.clone(), weight, 1e-6) is True


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: (_gpu(7, 4096), None), "no norm without a weight"),
        (
            lambda: (_gpu(7, 4096, dtype=torch.float32), _gpu(4096, dtype=F32)),
            "is used for float16 and bfloat16",
        ),
        (lambda: (_gpu(7, 4096), _gpu(4096, dtype=F32)), "multiply in one dtype"),
        (lambda: (_gpu(4096, 8).t(), _gpu(4096)), "not dense rows"),
        (lambda: (_gpu(4096), _gpu(4096)), "not dense rows"),
        (lambda: (_gpu(0, 4096), _gpu(4096)), "no elements"),
        (lambda: (_gpu(7, 100), _gpu(100)), "rows of 100: AITER takes multiples of 8 up to 8192"),
        (lambda: (_gpu(7, 16384), _gpu(16384)), "rows of 16384"),
    ],
)
def test_what_aiter_does_not_take_goes_on_with_the_reason(make: Any, reason: str) -> None:
    with FakeTensorMode():
        x, weight = make()
        assert reason in str(aiter_predicates.rms_norm(x, weight, 1e-6))
        assert reason in str(aiter_predicates.fused_add_rms_norm(x, x.clone(), weight, 1e-6))
