"""RMSNorm and GemmaRMSNorm against the formula in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from opdock.nn.layers import GemmaRMSNorm, RMSNorm

pytestmark = pytest.mark.usefixtures("config")


def _formula(x: torch.Tensor, weight: torch.Tensor | float, eps: float, size: int | None = None) -> torch.Tensor:
    x = x.double()
    part = x if size is None else x[..., :size]
    return x * torch.rsqrt(part.pow(2).mean(-1, keepdim=True) + eps) * weight


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_rows_are_divided_by_their_root_mean_square(dtype: torch.dtype) -> None:
    """The mean is taken in float32 at least, the result has the dtype of x."""
    norm = RMSNorm(48, eps=1e-5, dtype=dtype)
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(3, 5, 48, dtype=dtype)
    out = norm(x)
    assert out.dtype is dtype and out.shape == x.shape
    tolerance = {torch.float64: 1e-14, torch.float32: 1e-6}.get(dtype, 2e-2)
    torch.testing.assert_close(out.double(), _formula(x, norm.weight.double(), 1e-5), rtol=tolerance, atol=tolerance)


def test_a_residual_is_added_first_and_given_back() -> None:
    """The second result is the sum."""
    norm = RMSNorm(16, dtype=torch.float64)
    x, residual = torch.randn(4, 16, dtype=torch.float64), torch.randn(4, 16, dtype=torch.float64)
    total = x + residual
    out, found = norm(x, residual)
    torch.testing.assert_close(found, total)
    torch.testing.assert_close(out, _formula(total, 1.0, 1e-6))


def test_the_variance_may_count_a_part_of_the_row() -> None:
    """var_hidden_size limits the mean, not the result."""
    norm = RMSNorm(16, var_hidden_size=4, dtype=torch.float64)
    assert norm.variance_size_override == 4
    assert RMSNorm(16, var_hidden_size=16).variance_size_override is None
    x = torch.randn(4, 16, dtype=torch.float64)
    torch.testing.assert_close(norm(x), _formula(x, 1.0, 1e-6, 4))


def test_a_weightless_norm_has_no_parameter() -> None:
    """No checkpoint holds the weight, and it is not multiplied."""
    norm = RMSNorm(16, has_weight=False)
    assert not list(norm.parameters()) and not norm.state_dict()
    assert norm.weight.shape == (16,)
    norm.weight.fill_(7.0)
    x = torch.randn(4, 16)
    torch.testing.assert_close(norm(x), _formula(x, 1.0, 1e-6).float())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_gemma_multiplies_by_one_plus_weight_in_float32_at_least(dtype: torch.dtype) -> None:
    """A weight that is small beside 1 is not lost to bfloat16."""
    norm = GemmaRMSNorm(32, dtype=dtype)
    norm.weight.fill_(0.001)
    x = torch.full((2, 32), 3.0, dtype=dtype)
    out = norm(x)
    assert out.dtype is dtype
    torch.testing.assert_close(out, _formula(x, 1.0 + norm.weight.double(), 1e-6).to(dtype))


def test_gemma_takes_a_residual() -> None:
    """As RMSNorm does."""
    norm = GemmaRMSNorm(8, dtype=torch.float64)
    x, residual = torch.randn(2, 8, dtype=torch.float64), torch.randn(2, 8, dtype=torch.float64)
    total = x + residual
    out, found = norm(x, residual)
    torch.testing.assert_close(found, total)
    torch.testing.assert_close(out, _formula(total, 1.0, 1e-6))


def test_the_dtype_is_torchs_default_where_none_is_given() -> None:
    """Models are built under a default dtype."""
    torch.set_default_dtype(torch.float64)
    try:
        assert RMSNorm(4).weight.dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_native_is_reached_when_the_op_is_switched_off() -> None:
    """-rms_norm takes IR providers out, with and without a residual."""
    import opdock

    switched: Any = opdock.OpdockConfig(opdock.CompilationConfig(custom_ops=["all", "-rms_norm"]))
    with opdock.set_current_config(switched):
        norm = RMSNorm(8)
    x, residual = torch.randn(2, 8), torch.randn(2, 8)
    expected = _formula(x, 1.0, 1e-6).float()
    torch.testing.assert_close(norm(x), expected)
    total = x + residual
    torch.testing.assert_close(norm(x, residual)[1], total)
