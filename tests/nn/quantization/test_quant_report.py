"""What reports say of quantised layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from opdock.nn.layers import ReplicatedLinear
from opdock.nn.quantization import finish_loading, get_quantization_config, linear_backend
from opdock.nn.report import linear_choices, recording

pytestmark = pytest.mark.usefixtures("config")


def test_a_recording_names_the_kernel_of_a_quantised_layer() -> None:
    """And ``forward`` for one that is not quantised."""
    config = get_quantization_config("fp8").from_config({})
    model = nn.Sequential(
        ReplicatedLinear(16, 16, quant_config=config, return_bias=False), ReplicatedLinear(16, 8, return_bias=False)
    )
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    finish_loading(model)
    with recording(model) as record:
        model(torch.randn(2, 16))
    methods = {row.method for row in record.rows() if row.level == "layer"}
    assert methods == {"NativeScaledLinear", "forward"}


def test_the_choice_of_each_quantised_layer_is_listed_with_the_reasons_against_others() -> None:
    """Layers that are not quantised are not in it."""
    config = get_quantization_config("int8_w8a8").from_config({})
    model = nn.ModuleDict({"up": ReplicatedLinear(12, 16, quant_config=config), "down": ReplicatedLinear(16, 16)})
    (choice,) = linear_choices(model)
    assert (choice.layer, choice.method, choice.kernel) == ("up", "int8_w8a8", "NativeScaledLinear")
    assert choice.rejected == (("IntMatmulLinear", "12 x 16: not multiples of 8"),)
    assert "12 x 16" in choice.spec
    with linear_backend("native"):
        assert linear_choices(model)[0].rejected == (("IntMatmulLinear", "'native' was asked for"),)
