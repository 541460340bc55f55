"""opdock_ascend.linear: int8 linear layers of opdock's quantisation on torch_npu's operators."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from opdock.nn.layers import ColumnParallelLinear
from opdock.nn.quantization.spec import LinearSpec
from opdock_ascend.linear import AscendInt8Linear

SPEC = LinearSpec("int8", 96, 64, torch.bfloat16, torch.int8, "token", "channel", prefix="layer")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kind": "fp8"}, "fp8 weights"),
        ({"input_scale": "static"}, "static scales of the input: npu_dynamic_quant gives each row its own"),
        ({"act_dtype": torch.float32}, "activations of torch.float32"),
        ({"outputs": 70000}, "96 x 70000: the operator takes rows of up to 65535"),
    ],
)
def test_what_the_operators_do_not_take_has_a_reason(change: dict[str, Any], reason: str) -> None:
    able, why = AscendInt8Linear.can_implement(dataclasses.replace(SPEC, **change))
    assert not able
    assert why.startswith(reason)


def test_what_they_take_is_taken() -> None:
    assert AscendInt8Linear.can_implement(SPEC) == (True, "")


def _layer(bias: bool) -> Any:
    from opdock.nn.quantization import finish_loading
    from opdock.nn.quantization.int8 import Int8Config

    layer = ColumnParallelLinear(
        96, 64, bias=bias, params_dtype=torch.bfloat16, quant_config=Int8Config(serialized=True), prefix="layer"
    )
    layer.weight.data = torch.randint(-127, 128, (64, 96), dtype=torch.int8)
    layer.weight_scale.data = torch.rand(64, 1) / 100
    if bias:
        layer.bias.data = torch.randn(64).bfloat16()
    layer = layer.to("npu")
    finish_loading(layer)
    return layer


@pytest.mark.usefixtures("activated")
@pytest.mark.parametrize("bias", [True, False])
def test_a_quantised_layer_multiplies_in_int8_and_agrees_with_its_weight_as_floats(calls: Any, bias: bool) -> None:
    layer, x = _layer(bias), torch.randn(3, 2, 96).bfloat16()
    assert type(layer.quant_method.kernel) is AscendInt8Linear
    found, _ = layer(x.npu())
    assert [call.op for call in calls()] == ["npu::npu_dynamic_quant", "npu::npu_quant_matmul"]
    weight = layer.quant_method.dequantize_weight(layer).cpu().double()
    assert weight.shape == (64, 96)
    step = x.double().abs().amax(-1, keepdim=True) / 127
    expected = (torch.round(x.double() / step) * step) @ weight.t()
    expected = expected + layer.bias.cpu().double() if bias else expected
    torch.testing.assert_close(found.cpu().double(), expected, atol=5e-2, rtol=2e-2)


@pytest.mark.usefixtures("activated")
def test_no_rows_give_no_rows(calls: Any) -> None:
    found, _ = _layer(bias=False)(torch.empty(0, 96, dtype=torch.bfloat16, device="npu"))
    assert found.shape == (0, 64)
    assert calls() == []


@pytest.mark.usefixtures("activated")
def test_layers_that_it_cannot_serve_get_another_kernel_and_the_verdict_says_why() -> None:
    from opdock.nn.quantization.selection import explain_linear_kernel

    chosen, verdicts = explain_linear_kernel(dataclasses.replace(SPEC, input_scale="static"))
    assert chosen is not AscendInt8Linear
    assert verdicts[0].kernel == "AscendInt8Linear"
    assert "static scales of the input" in verdicts[0].reason
    assert explain_linear_kernel(SPEC)[0] is AscendInt8Linear
