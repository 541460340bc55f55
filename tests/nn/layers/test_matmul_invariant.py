"""Products whose rows do not depend on each other."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from opdock import env
from opdock.nn.invariant import BatchInvarianceError
from opdock.nn.layers import matmul
from opdock.nn.layers.matmul_invariant import invariant_linear, why_not

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("outputs", "inputs"), [(960, 576), (100, 46), (7, 1536)])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_has_the_same_bits_in_any_batch_at_any_place(
    dtype: torch.dtype, outputs: int, inputs: int, threads: int
) -> None:
    """1 to 33 rows, wherever they and their memory begin, apart from each other, with a bias or none."""
    x, weight = torch.randn(40, inputs).to(dtype), torch.randn(outputs, inputs).to(dtype)
    torch.set_num_threads(threads)
    for bias in (None, torch.randn(outputs).to(dtype)):
        alone = torch.cat([invariant_linear(x[i : i + 1].clone(), weight, bias) for i in range(40)])
        for rows in (1, 2, 3, 7, 8, 33):
            for start, shift in ((0, 0), (5, 1), (7, 3)):
                memory = torch.empty(rows * (inputs + shift), dtype=dtype).view(rows, inputs + shift)[:, shift:]
                memory.copy_(x[start : start + rows])
                assert torch.equal(invariant_linear(memory, weight, bias), alone[start : start + rows])


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_in_all_shapes(dtype: torch.dtype) -> None:
    """One dimension to three, and no rows, against float64."""
    weight, bias = torch.randn(24, 40).to(dtype), torch.randn(24).to(dtype)
    for shape in ((40,), (0, 40), (5, 40), (2, 3, 40)):
        x = torch.randn(shape).to(dtype)
        made = invariant_linear(x, weight, bias)
        assert made.shape == (*shape[:-1], 24) and made.dtype == dtype
        exact = x.double() @ weight.double().t() + bias.double()
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(made.double(), exact, rtol=2 * eps, atol=80 * min(eps, 1e-6) + 2 * eps)


def test_the_variable_chooses_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it stands at the call."""
    x, weight = torch.randn(5, 64), torch.randn(48, 64)
    monkeypatch.setenv(env.VLLM_BATCH_INVARIANT, "1")
    assert torch.equal(matmul.linear(x, weight), torch.cat([matmul.product(x[i : i + 1], weight) for i in range(5)]))
    monkeypatch.setenv(env.VLLM_BATCH_INVARIANT, "0")
    assert torch.equal(matmul.linear(x, weight), torch.nn.functional.linear(x, weight))


def test_whoever_looks_at_ops_sees_one() -> None:
    """Also on tensors without data."""
    with FakeTensorMode():
        made = invariant_linear(torch.empty(2, 3, 8), torch.empty(5, 8), None)
    assert made.shape == (2, 3, 5) and made.dtype == torch.float32
    torch.library.opcheck(torch.ops.opdock.invariant_linear, (torch.randn(3, 8), torch.randn(5, 8), torch.randn(5)))


def test_where_there_is_no_such_product_an_error_names_it() -> None:
    """Other devices; dtypes that the kernel has none for."""
    assert why_not("cpu", torch.float64) == ""
    assert "float64" in why_not("cuda", torch.float64) and "xpu tensors" in why_not("xpu", torch.float32)
    with pytest.raises(BatchInvarianceError, match="would depend on the others") as caught:
        invariant_linear(torch.empty(2, 8, device="meta"), torch.empty(4, 8, device="meta"))
    assert "op linear, x (2, 8) and weight (4, 8)" in caught.value.who and caught.value.remedy
