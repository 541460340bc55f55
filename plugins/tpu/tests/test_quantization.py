"""Quantised linear layers on device ``jax``: the methods that the platform says it supports."""

from __future__ import annotations

import pytest
import torch

from opdock.nn.layers import ColumnParallelLinear
from opdock_tpu import xla


@pytest.mark.usefixtures("activated")
@pytest.mark.parametrize("bias", [True, False])
def test_an_int8_layer_agrees_with_its_weight_as_floats(bias: bool) -> None:
    from opdock.nn.quantization import finish_loading
    from opdock.nn.quantization.int8 import Int8Config

    torch.manual_seed(0)
    layer = ColumnParallelLinear(
        96, 64, bias=bias, params_dtype=torch.bfloat16, quant_config=Int8Config(serialized=True), prefix="layer"
    )
    numbers = torch.randint(-127, 128, (64, 96), dtype=torch.int8)
    scale, x = torch.rand(64, 1) / 100, torch.randn(3, 2, 96).bfloat16()
    layer.weight.data, layer.weight_scale.data = numbers, scale
    given = torch.randn(64).bfloat16()
    if bias:
        layer.bias.data = given
    with xla.without_gradients():
        layer = layer.to("jax")
        finish_loading(layer)
        found = layer(x.to("jax"))[0].cpu()
    step = x.double().abs().amax(-1, keepdim=True) / 127
    expected = (torch.round(x.double() / step) * step) @ (numbers.double() * scale.double()).t()
    expected = expected + given.double() if bias else expected
    torch.testing.assert_close(found.double(), expected, atol=5e-2, rtol=2e-2)
