"""Run by test_gemm_invariant.py under ``TRITON_INTERPRET=1``: the product of fixed order against float64."""

from __future__ import annotations

import pytest
import torch

from opdock.nn.kernels.triton.gemm_invariant import linear
from opdock.nn.kernels.triton.interpreting import round_like_hardware

BITS = {torch.float32: 20, torch.bfloat16: 8, torch.float16: 11}


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    round_like_hardware()
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize(("outputs", "inputs"), [(96, 100), (64, 128), (40, 72), (1, 1)])
def test_values_and_bits(outputs: int, inputs: int, dtype: torch.dtype) -> None:
    """Sizes that tiles do not divide, a bias or none, rows that lie apart; each row as it is alone."""
    x, weight = torch.randn(70, inputs).to(dtype), torch.randn(outputs, inputs).to(dtype)
    for bias in (None, torch.randn(outputs).to(dtype)):
        made = linear(x, weight, bias)
        exact = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
        assert made.shape == (70, outputs) and made.dtype == dtype
        error = (made.double() - exact).abs()
        assert bool((error <= 2.0 ** -BITS[dtype] * exact.abs() + 1e-5 * inputs**0.5).all())
        for start, end in ((0, 1), (33, 34), (69, 70), (2, 9), (40, 70)):
            assert torch.equal(linear(x[start:end], weight, bias), made[start:end])
        apart = torch.randn(70, inputs + 3).to(dtype)
        apart[:, 3:] = x
        assert torch.equal(linear(apart[:, 3:], weight, bias), made)
    assert linear(x[:0], weight).shape == (0, outputs)
