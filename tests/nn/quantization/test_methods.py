"""Quantised layers against float64: rounding of weights and rows, fused parts, biases, sizes."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from opdock.errors import CheckpointError, UnsupportedError
from opdock.nn.layers import MergedColumnParallelLinear, QKVParallelLinear, ReplicatedLinear, RowParallelLinear
from opdock.nn.quantization import finish_loading, get_quantization_config, linear_backend
from opdock.nn.quantization.compressed_tensors import CompressedTensorsConfig
from opdock.nn.quantization.fp8 import Fp8Config
from opdock.nn.quantization.layouts import pack
from opdock.nn.quantization.rounding import quantise_int4, quantise_weight

pytestmark = pytest.mark.usefixtures("config")

FP8_STEP, INT8_STEP = 2.0**-4, 0.5 / 127
"""Half a step: of fp8 relative to the element, of int8 relative to the largest of the row."""


def _filled(layer: Any) -> Any:
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer


@pytest.mark.parametrize(("method", "step"), [("fp8", FP8_STEP), ("int8_w8a8", INT8_STEP)])
@pytest.mark.parametrize("backend", ["native", None])
def test_floats_are_quantised_after_loading(method: str, step: float, backend: str | None) -> None:
    """No result is further from float64 than the rounding of both sides allows; any leading shape."""
    torch.manual_seed(0)
    with linear_backend(backend):
        config = get_quantization_config(method).from_config({})
        layer = _filled(cast("Any", ReplicatedLinear(48, 40, quant_config=config, prefix="up", return_bias=False)))
    weight, bias = layer.weight.data.double(), layer.bias.data.double()
    finish_loading(layer)
    assert layer.weight.itemsize == 1
    x = torch.randn(2, 5, 48)
    wide = x.double()
    y = layer(x)
    assert y.shape == (2, 5, 40)
    if method == "fp8":
        bound = (wide.abs() @ weight.abs().t()) * (2.1 * step)
    else:
        rows, columns = wide.abs().amax(-1, keepdim=True), weight.abs().amax(1)
        bound = step * (rows * weight.abs().sum(1) + wide.abs().sum(-1, keepdim=True) * columns) * 1.02
    assert bool(((y.double() - wide @ weight.t() - bias).abs() <= bound + 1e-5).all())
    near = (layer.quant_method.dequantize_weight(layer).double() - weight).abs()
    assert bool((near <= step * (weight.abs() if method == "fp8" else weight.abs().amax(1, keepdim=True)) + 1e-3).all())


def test_each_part_of_a_fused_layer_has_a_scale_of_its_own() -> None:
    """One scale in all would round the small part to nothing."""
    layer = cast(
        "Any",
        MergedColumnParallelLinear(
            32, [16, 16], False, quant_config=Fp8Config(is_checkpoint_fp8_serialized=True), return_bias=False
        ),
    )
    parts = [torch.randn(16, 32), torch.randn(16, 32) * 1e-4]
    for i, part in enumerate(parts):
        q, scale = quantise_weight(part, torch.float8_e4m3fn, "tensor")
        layer.weight_loader(layer.weight, q, i)
        layer.weight_loader(layer.weight_scale, scale.view(()), i)
    finish_loading(layer)
    floats = layer.quant_method.dequantize_weight(layer)
    for got, part in zip(floats.split(16), parts, strict=True):
        assert (got - part).norm() < 0.05 * part.norm()


def test_scales_that_were_never_loaded_are_an_error_with_the_layers_name() -> None:
    """Not a product with whatever was in memory."""
    config = Fp8Config(is_checkpoint_fp8_serialized=True)
    layer = cast("Any", ReplicatedLinear(32, 16, quant_config=config, prefix="model.layers.3.up"))
    layer.weight_loader(layer.weight, torch.zeros(16, 32).to(torch.float8_e4m3fn))
    with pytest.raises(CheckpointError, match=r"no weight_scale for the layer 'model.layers.3.up'"):
        finish_loading(layer)


def test_numbers_of_another_kind_are_not_converted_into_a_weight() -> None:
    """int8 codes are no fp8 numbers."""
    config = Fp8Config(is_checkpoint_fp8_serialized=True)
    layer = cast("Any", ReplicatedLinear(32, 16, quant_config=config, prefix="up"))
    with pytest.raises(CheckpointError, match=r"float8_e4m3fn[\s\S]*int8"):
        layer.weight_loader(layer.weight, torch.zeros(16, 32, dtype=torch.int8))


def test_blocks_are_128_by_128_and_the_last_may_be_smaller() -> None:
    """Rows and weights are rounded block by block."""
    torch.manual_seed(0)
    config = Fp8Config(weight_block_size=[128, 128])
    layer = _filled(cast("Any", ReplicatedLinear(192, 200, False, quant_config=config, return_bias=False)))
    weight = layer.weight.data.double()
    finish_loading(layer)
    assert layer.weight_scale.shape == (2, 2)
    x = torch.randn(3, 192)
    x[:, 128:] *= 1e-3
    bound = (x.double().abs() @ weight.abs().t()) * (2.1 * FP8_STEP) + 1e-4
    assert bool(((layer(x).double() - x.double() @ weight.t()).abs() <= bound).all())


def test_a_fused_part_that_ends_inside_a_block_is_refused() -> None:
    """When the layer is built: its scale cannot stand for two parts. The last part may end anywhere."""
    config = Fp8Config(is_checkpoint_fp8_serialized=True, weight_block_size=[128, 128])
    with pytest.raises(UnsupportedError, match=r"'a.qkv_proj' cannot be quantised in blocks[\s\S]*64, 64, 64 outputs"):
        QKVParallelLinear(128, 32, 2, 2, False, quant_config=config, prefix="a.qkv_proj")
    layer = cast("Any", MergedColumnParallelLinear(128, [128, 40], False, quant_config=config, prefix="a.gate_up"))
    assert layer.weight_scale_inv.shape == (2, 1)
    layer.weight_loader(layer.weight_scale_inv, torch.full((1, 1), 3.0), 1)
    assert layer.weight_scale_inv[1].item() == 3.0


def _packed_config(**weights: Any) -> CompressedTensorsConfig:
    args = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True, **weights}
    groups = {"group_0": {"targets": ["Linear"], "weights": args, "input_activations": None}}
    return CompressedTensorsConfig.from_config({"format": "pack-quantized", "config_groups": groups})


@pytest.mark.parametrize("symmetric", [True, False])
def test_packed_4_bit_weights(*, symmetric: bool) -> None:
    """(code - zero) * scale, exactly, in float32."""
    weight = torch.randn(24, 64)
    codes, scales, zeros = quantise_int4(weight, 32, zero_points=not symmetric)
    config = _packed_config(symmetric=symmetric)
    layer = cast("Any", ReplicatedLinear(64, 24, False, quant_config=config, prefix="up", return_bias=False))
    layer.weight_loader(layer.weight_packed, pack(codes, 1))
    layer.weight_loader(layer.weight_scale, scales.t().contiguous())
    if zeros is not None:
        layer.weight_loader(layer.weight_zero_point, pack(zeros.t(), 0))
    finish_loading(layer)
    z = 8 if zeros is None else zeros.t().float().repeat_interleave(32, 1)
    exact = (codes.float() - z) * scales.t().repeat_interleave(32, 1)
    assert torch.equal(layer.quant_method.dequantize_weight(layer), exact)
    assert (exact - weight).abs().max() <= scales.max() * 0.5001
    x = torch.randn(3, 64)
    torch.testing.assert_close(layer(x), x @ exact.t())


def test_a_group_size_that_does_not_divide_is_refused_with_the_layers_name() -> None:
    """When the layer is built."""
    with pytest.raises(UnsupportedError, match=r"'model.up' cannot be quantised so[\s\S]*64 inputs[\s\S]*48"):
        ReplicatedLinear(64, 24, quant_config=_packed_config(group_size=48), prefix="model.up")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_bits": 3}, "3 bits"),
        ({"strategy": "tensor"}, "strategy 'tensor'"),
        ({"type": "float"}, "of floats"),
        ({"group_size": None}, "'group_size'"),
    ],
)
def test_packed_configurations_that_are_not_loaded_say_why(change: dict[str, Any], message: str) -> None:
    """When they are read."""
    with pytest.raises((UnsupportedError, CheckpointError), match=message):
        _packed_config(**change)


def test_targets_choose_the_layers_and_the_rest_stays_as_it_is() -> None:
    """By path, end of a path or expression."""
    args = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
    groups = {"g": {"targets": ["re:.*up_proj", "down_proj"], "weights": args, "format": "pack-quantized"}}
    config = CompressedTensorsConfig.from_config({"config_groups": groups, "ignore": ["model.layers.1.up_proj"]})
    for prefix, quantised in (
        ("model.layers.0.up_proj", True),
        ("model.layers.1.up_proj", False),
        ("model.layers.0.down_proj", True),
        ("model.layers.0.o_proj", False),
    ):
        layer = ReplicatedLinear(64, 32, quant_config=config, prefix=prefix)
        assert layer.quant_method.rewrites_weights is quantised


def test_a_replacement_that_goes_past_the_method_is_refused_with_the_layers_name(taken_back: None) -> None:
    """It would take codes for a weight; unquantised layers are its own as before."""

    @RowParallelLinear.register_oot
    class Vendor(RowParallelLinear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight.t()  # type: ignore[operator, union-attr]

    assert type(RowParallelLinear(8, 4)) is Vendor
    with pytest.raises(UnsupportedError, match=r"Vendor[\s\S]*'model.down_proj'[\s\S]*-row_parallel_linear"):
        RowParallelLinear(8, 4, quant_config=Fp8Config(), prefix="model.down_proj")
    Vendor.applies_quant_method = True
    assert type(RowParallelLinear(8, 4, quant_config=Fp8Config(), prefix="model.down_proj")) is Vendor
