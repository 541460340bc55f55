"""opdock_ascend.layers: the replaced norm of Gemma. Values at all sizes are the kit's matter."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytestmark = pytest.mark.usefixtures("activated")


def _layer(dtype: torch.dtype) -> Any:
    from opdock.nn.layers import GemmaRMSNorm

    layer = GemmaRMSNorm(96, dtype=dtype)
    layer.weight.data = torch.randn(96, dtype=dtype)
    return layer.to("npu")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("with_residual", [True, False])
def test_the_norm_is_one_call_of_the_operator_that_adds_one_itself(
    calls: Any, dtype: torch.dtype, with_residual: bool
) -> None:
    """Against the formula in float64."""
    layer, x = _layer(dtype), torch.randn(5, 96).to(dtype)
    assert type(layer).__name__ == "AscendGemmaRMSNorm"
    residual = torch.randn(5, 96).to(dtype) if with_residual else None
    total = x.double() if residual is None else (x + residual).double()
    expected = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + layer.weight.cpu().double())
    found = layer(x.npu()) if residual is None else layer(x.npu(), residual.npu())
    (call,) = calls()
    assert call.op == "npu::npu_gemma_rms_norm"
    if residual is not None:
        found, added = found
        assert torch.equal(added.cpu(), x + residual)
    torch.testing.assert_close(found.cpu(), expected.to(dtype))


def test_what_the_operator_does_not_take_runs_native(calls: Any) -> None:
    layer = _layer(torch.float16)
    empty = torch.empty(0, 96, dtype=torch.float16, device="npu")
    assert layer(empty).shape == (0, 96)
    assert [call.op for call in calls("npu::npu_gemma_rms_norm")] == []


def test_without_the_replacement_a_norm_in_16_bits_would_reach_no_operator(calls: Any) -> None:
    """The in-tree layer's weight is float32 beside x in 16 bits, which is why there is a replacement."""
    layer = _layer(torch.float16)
    layer.forward_native(torch.randn(5, 96).half().npu())
    assert calls() == []
