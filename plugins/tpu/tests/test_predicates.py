"""opdock_tpu.predicates: True, or the reason why not; metadata alone."""

from __future__ import annotations

import re

import pytest
import torch

from opdock_tpu import predicates

X = torch.empty(3, 64)
W = torch.empty(64)


@pytest.fixture(autouse=True)
def _on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPDOCK_TPU_ON", "cpu")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("weight", [W, None, W.bfloat16()])
def test_the_kernels_take_their_dtypes_with_any_weight_of_them(dtype: torch.dtype, weight: torch.Tensor | None) -> None:
    x = X.to(dtype)
    assert predicates.rms_norm(x, weight, 1e-5) is True
    assert predicates.fused_add_rms_norm(x, X, weight, 1e-5) is True


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((X.half(), W), "no kernel for torch.float16"),
        ((X.double(), W), "no kernel for torch.float64"),
        ((X, W.half()), "no kernel for a weight of torch.float16"),
        ((X, W[:32]), r"a weight of shape \(32,\) does not fit rows of 64"),
        ((X[:0], W), "no elements"),
        ((torch.empty(()), W), "x has no rows"),
        ((torch.empty(1, 32769, dtype=torch.bfloat16), None), "rows of 32769 columns do not fit"),
        ((X.to("meta"), W.to("meta")), "x is on meta, and the kernels run on jax"),
    ],
)
def test_what_they_do_not_take_is_told(arguments: tuple[torch.Tensor, torch.Tensor | None], reason: str) -> None:
    x, weight = arguments
    assert re.search(reason, str(predicates.rms_norm(x, weight, 1e-5)))
    assert re.search(
        reason, str(predicates.fused_add_rms_norm(x, torch.empty_like(x, dtype=torch.float32), weight, 1e-5))
    )


def test_parts_of_rows_and_residuals_that_do_not_fit_are_told() -> None:
    assert "a part of the row" in str(predicates.rms_norm(X, W, 1e-5, 32))
    assert "differ in shape" in str(predicates.fused_add_rms_norm(X, X[:2], W, 1e-5))
    assert "x_residual of torch.float16" in str(predicates.fused_add_rms_norm(X, X.half(), W, 1e-5))
    assert "a part of the row" in str(predicates.fused_add_rms_norm(X, X, W, 1e-5, 32))


def test_cpu_tensors_are_taken_only_where_the_cpu_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPDOCK_TPU_ON")
    assert predicates.rms_norm(X, W, 1e-5) == "x is on cpu, and the kernels run on jax"
