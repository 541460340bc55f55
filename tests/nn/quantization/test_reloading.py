"""Weights are loaded again: with other values, into the same memory, and after a checkpoint that was refused."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from opdock.errors import CheckpointError, OrderError
from opdock.nn.layers import MergedColumnParallelLinear, ReplicatedLinear
from opdock.nn.quantization import finish_loading, linear_backend, start_loading
from opdock.nn.quantization.fp8 import Fp8Config
from opdock.nn.quantization.gptq import GPTQConfig
from opdock.nn.quantization.int8 import Int8Config

pytestmark = pytest.mark.usefixtures("config")


def _numbers(seed: int) -> dict[str, torch.Tensor]:
    """Return a GPTQ layer of 64 inputs and 16 outputs, its inputs in any order of two groups."""
    made = torch.Generator().manual_seed(seed)
    low, high = -(2**31), 2**31
    return {
        "qweight": torch.randint(low, high, (8, 16), generator=made, dtype=torch.int64).to(torch.int32),
        "qzeros": torch.randint(low, high, (2, 2), generator=made, dtype=torch.int64).to(torch.int32),
        "scales": torch.rand(2, 16, generator=made) + 0.5,
        "g_idx": (torch.arange(64) // 32)[torch.randperm(64, generator=made)].to(torch.int32),
    }


def _floats(numbers: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the weight (16, 64) in float64, element by element."""
    out = torch.empty(16, 64, dtype=torch.float64)
    for i in range(64):
        group = int(numbers["g_idx"][i])
        for o in range(16):
            code = int(numbers["qweight"][i // 8, o]) >> (4 * (i % 8)) & 15
            zero = int(numbers["qzeros"][group, o // 8]) >> (4 * (o % 8)) & 15
            out[o, i] = (code - zero) * float(numbers["scales"][group, o])
    return out


def _load(layer: Any, numbers: dict[str, torch.Tensor]) -> None:
    start_loading(layer)
    for name, tensor in numbers.items():
        layer.weight_loader(layer.get_parameter(name), tensor)
    finish_loading(layer)


def _layer() -> Any:
    config = GPTQConfig(weight_bits=4, group_size=32, desc_act=True, sym=False, checkpoint_format="gptq_v2")
    return ReplicatedLinear(64, 16, False, quant_config=config, prefix="model.up", return_bias=False)


def _places(layer: Any) -> dict[str, int]:
    return {name: p.data_ptr() for name, p in layer.named_parameters()}


def test_other_values_take_the_place_of_the_first_in_the_same_memory() -> None:
    """As float64 has them, and the first ones again."""
    layer, x = _layer(), torch.eye(64)
    places = None
    for seed in (1, 2, 1):
        _load(layer, _numbers(seed))
        torch.testing.assert_close(layer(x).double().t(), _floats(_numbers(seed)), atol=1e-6, rtol=1e-6)
        assert places in (None, _places(layer))
        places = _places(layer)


@pytest.mark.parametrize(
    ("name", "broken", "message"),
    [
        ("g_idx", torch.zeros(64, dtype=torch.int32), "groups of the layer 'model.up'"),
        ("scales", torch.full((2, 16), float("nan")), "32 of 32 are NaN"),
        ("scales", torch.full((2, 16), float("inf")), "32 of 32 are infinite"),
    ],
)
@pytest.mark.parametrize("loaded_before", [True, False])
def test_a_layer_takes_a_good_checkpoint_after_one_that_was_refused(
    name: str, broken: torch.Tensor, message: str, *, loaded_before: bool
) -> None:
    """Also one that was refused after the first tensors had been unpacked, and into the memory that is in use."""
    layer = _layer()
    if loaded_before:
        _load(layer, _numbers(1))
    places = _places(layer)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=message):
            _load(layer, {**_numbers(2), name: broken})
        with pytest.raises(OrderError, match="'model.up' are not ready"):
            layer(torch.eye(64))
    _load(layer, _numbers(3))
    torch.testing.assert_close(layer(torch.eye(64)).double().t(), _floats(_numbers(3)), atol=1e-6, rtol=1e-6)
    assert not loaded_before or _places(layer) == places


def test_a_layer_keeps_the_kernel_that_was_forced_when_it_was_built() -> None:
    """The force is over when weights are loaded again; the tensors in use belong to that kernel."""
    with linear_backend("native"):
        layer = cast("Any", ReplicatedLinear(64, 16, False, quant_config=Int8Config(), return_bias=False))
    before = layer.quant_method.kernel
    assert type(before).__name__ == "NativeScaledLinear"
    for seed in (0, 1):
        start_loading(layer)
        layer.weight_loader(layer.weight, torch.randn(16, 64, generator=torch.Generator().manual_seed(seed)))
        finish_loading(layer)
    assert layer.quant_method.kernel is before


@pytest.mark.parametrize("number", [0.0, -1.0, float("inf"), float("nan")])
def test_a_scale_of_activations_is_a_positive_number(number: float) -> None:
    """Divided by another one, every row is wrong or NaN."""
    config = Fp8Config(is_checkpoint_fp8_serialized=True, activation_scheme="static")
    layer = cast("Any", MergedColumnParallelLinear(32, [16, 16], False, quant_config=config, prefix="model.gate_up"))
    layer.weight_loader(layer.weight, torch.zeros(32, 32).to(torch.float8_e4m3fn))
    for part in (0, 1):
        layer.weight_loader(layer.weight_scale, torch.tensor(1.0), part)
    layer.weight_loader(layer.input_scale, torch.tensor(2.0), 0)
    layer.weight_loader(layer.input_scale, torch.tensor(number), 1)
    with pytest.raises(CheckpointError, match=r"the layer 'model.gate_up'[\s\S]*input_scale: "):
        finish_loading(layer)


def test_a_weight_scale_is_finite_and_may_be_zero() -> None:
    """A row of zeros has one of zero in some tools."""
    config = Fp8Config(is_checkpoint_fp8_serialized=True)
    for number, fits in ((0.0, True), (float("inf"), False)):
        layer = cast("Any", ReplicatedLinear(32, 16, False, quant_config=config, prefix="up", return_bias=False))
        layer.weight_loader(layer.weight, torch.ones(16, 32).to(torch.float8_e4m3fn))
        layer.weight_loader(layer.weight_scale, torch.tensor(number))
        if fits:
            finish_loading(layer)
            assert not layer(torch.ones(2, 32)).any()
        else:
            with pytest.raises(CheckpointError, match=r"the layer 'up'[\s\S]*weight_scale: 1 of 1 are infinite"):
                finish_loading(layer)


@pytest.mark.parametrize("order", [False, True])
def test_inputs_in_another_order_than_the_configuration_says_are_refused(*, order: bool) -> None:
    """Taken in order, each input would be multiplied by the scale of another group."""
    config = GPTQConfig(weight_bits=4, group_size=32, desc_act=False, sym=False, checkpoint_format="gptq_v2")
    layer = cast("Any", ReplicatedLinear(64, 16, False, quant_config=config, prefix="model.up", return_bias=False))
    numbers = _numbers(1)
    if order:
        numbers["g_idx"] = (torch.arange(64) // 32).to(torch.int32)
        _load(layer, numbers)
        torch.testing.assert_close(layer(torch.eye(64)).double().t(), _floats(numbers), atol=1e-6, rtol=1e-6)
        return
    with pytest.raises(CheckpointError, match=r"'model.up' has its inputs in another order[\s\S]*\"desc_act\": true"):
        _load(layer, numbers)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_quantised_numbers_and_scales_keep_their_bits_when_the_models_dtype_changes(dtype: torch.dtype) -> None:
    """A scale in bfloat16 would change every weight; a bias goes with the activations."""
    config = Fp8Config()
    layer = cast("Any", ReplicatedLinear(32, 16, quant_config=config, return_bias=False))
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    finish_loading(layer)
    before = {name: p.clone() for name, p in layer.named_parameters()}
    layer.to(dtype)
    for name in ("weight", "weight_scale"):
        kept = layer.get_parameter(name)
        assert kept.dtype == before[name].dtype
        assert torch.equal(kept.view(torch.uint8), before[name].view(torch.uint8))
    assert layer.bias.dtype == dtype
    assert layer(torch.ones(2, 32, dtype=dtype)).dtype == dtype
    plain = cast("Any", ReplicatedLinear(32, 16, return_bias=False)).to(dtype)
    assert plain.weight.dtype == dtype


def test_a_quantised_model_can_be_built_without_weights(packed: Any) -> None:
    """With memory too: what is uninitialised is not called broken."""
    from opdock.nn.loading import load_without_weights

    def quantise(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        return {"weight": weight.to(torch.float8_e4m3fn), "weight_scale": torch.tensor(1.0)}, weight

    folder, _ = packed(quantise, {"quant_method": "fp8", "activation_scheme": "static"})
    model: Any = load_without_weights(folder)
    assert model.model.layers[0].mlp.down_proj.input_scale.shape == ()
    layer = cast("Any", ReplicatedLinear(32, 16, quant_config=Fp8Config(is_checkpoint_fp8_serialized=True)))
    with pytest.raises(CheckpointError, match="weight_scale"):
        finish_loading(layer)


@pytest.mark.parametrize("method", [Fp8Config(), Fp8Config(is_checkpoint_fp8_serialized=True), Int8Config()])
def test_a_layer_whose_weights_are_not_ready_says_what_is_missing(method: Any) -> None:
    """A product with scales as the checkpoint has them could be wrong without a word; once ready, nothing is asked."""
    layer = cast("Any", ReplicatedLinear(32, 16, quant_config=method, prefix="model.up", return_bias=False))
    with pytest.raises(OrderError, match=r"'model.up' are not ready[\s\S]*finish_loading\(model\)"):
        layer(torch.ones(2, 32))
    layer.weight.data.copy_(torch.ones(16, 32))
    layer.bias.data.zero_()
    if getattr(method, "is_checkpoint_fp8_serialized", False):
        layer.weight_scale.data.fill_(1.0)
    finish_loading(layer)
    assert "apply" not in vars(layer.quant_method)
    torch.testing.assert_close(layer(torch.ones(2, 32)), torch.full((2, 16), 32.0))
