"""Methods by name."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, cast

import pytest
import torch
from torch import nn

import opdock
from opdock import context
from opdock.errors import (
    ConfigError,
    DuplicateError,
    PlatformFailedError,
    RegistrationError,
    UnknownNameError,
    UnsupportedError,
)
from opdock.nn.layers import MergedColumnParallelLinear, ReplicatedLinear
from opdock.nn.models import quant_config
from opdock.nn.models.quant_config import check_act_dtype, ready
from opdock.nn.quantization import (
    LinearMethodBase,
    QuantizationConfig,
    UnquantizedLinearMethod,
    get_quantization_config,
    method_has_implemented_embedding,
    quantization_methods,
    register_quantization_config,
)
from opdock.platforms.enums import DeviceCapability

pytestmark = pytest.mark.usefixtures("taken_back")


class Halves(QuantizationConfig):
    """A method whose weights are stored as twice their value."""

    def get_name(self) -> str:
        return "halves"

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        return 90

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Halves:
        return cls()

    def get_quant_method(self, layer: nn.Module, prefix: str) -> LinearMethodBase | None:
        return None if "none" in prefix else HalvesMethod()


class HalvesMethod(LinearMethodBase):
    """As plugin authors write one: it knows create_weights, process_weights_after_loading and apply."""

    def create_weights(
        self,
        layer: nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        made = torch.empty(sum(output_partition_sizes), input_size_per_partition, dtype=params_dtype)
        layer.weight = nn.Parameter(made, requires_grad=False)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        layer.weight.data.div_(2)  # type: ignore[operator, union-attr]

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return nn.functional.linear(x, layer.weight, bias)  # type: ignore[arg-type]


def test_an_unknown_name_gives_near_matches() -> None:
    """And all names."""
    with pytest.raises(
        UnknownNameError, match=r"Invalid quantization method: awk[\s\S]*'awq'[\s\S]*compressed-tensors"
    ):
        get_quantization_config("awk")


@pytest.mark.parametrize("name", quantization_methods())
def test_every_built_in_method_has_its_own_name(name: str) -> None:
    """And says which dtypes it takes."""
    cls = get_quantization_config(name)
    assert issubclass(cls, QuantizationConfig)
    assert cls.get_min_capability() <= 80


def test_a_method_of_a_third_party_is_found_under_its_name() -> None:
    """The decorator returns the class; the same again is no error, another class is."""
    assert register_quantization_config("halves")(Halves) is Halves
    assert get_quantization_config("halves") is Halves
    assert "halves" in quantization_methods()
    register_quantization_config("halves")(Halves)
    with pytest.raises(DuplicateError, match=r"halves[\s\S]*test_registry"):
        register_quantization_config("halves")(type("Other", (Halves,), {"get_name": lambda self: "other"}))


def test_a_built_in_name_can_be_taken_over_and_the_log_says_by_whom(caplog: pytest.LogCaptureFixture) -> None:
    """As plugins do with their own kernels for a known format; once, however often the module registers it."""
    with caplog.at_level("INFO", logger="opdock"):
        register_quantization_config("gptq")(Halves)
        register_quantization_config("gptq")(Halves)
        register_quantization_config("halves")(Halves)
    assert get_quantization_config("gptq") is Halves
    assert len(caplog.messages) == 1
    assert "gptq" in caplog.text and "test_registry" in caplog.text and "in place of the built-in one" in caplog.text


@pytest.mark.parametrize("bad", [object, int, QuantizationConfig, "text"])
def test_a_registration_that_fails_leaves_nothing(bad: Any) -> None:
    """Neither the name nor the platform's list."""
    with opdock.set_current_config():
        platform = type(context.platform())
        platform.supported_quantization = ["fp8"]
        try:
            with pytest.raises(RegistrationError):
                register_quantization_config("broken")(bad)
            assert platform.supported_quantization == ["fp8"]
        finally:
            del platform.supported_quantization
    assert "broken" not in quantization_methods()
    with pytest.raises(UnknownNameError):
        get_quantization_config("broken")


def test_a_platform_with_a_list_supports_a_new_method_and_refuses_others() -> None:
    """An empty list means all."""
    with opdock.set_current_config():
        platform = type(context.platform())
        platform.supported_quantization = ["fp8"]
        try:
            register_quantization_config("halves")(Halves)
            assert platform.supported_quantization == ["fp8", "halves"]
            ready(Halves())
            with pytest.raises(ConfigError, match="awq quantization is currently not supported"):
                ready(get_quantization_config("awq").from_config({"bits": 4, "group_size": 32}))
        finally:
            del platform.supported_quantization


def test_a_capability_that_is_too_low_is_refused_and_one_that_is_unknown_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both numbers are shown."""
    with opdock.set_current_config():
        platform = type(context.platform())
        ready(Halves())
        monkeypatch.setattr(platform, "get_device_capability", classmethod(lambda cls, i=0: DeviceCapability(8, 6)))
        with pytest.raises(UnsupportedError, match=r"halves[\s\S]*90[\s\S]*86"):
            ready(Halves())


def test_a_dtype_that_the_method_does_not_take_is_refused() -> None:
    """With those that it takes."""
    with pytest.raises(
        UnsupportedError, match=r"bfloat16 is not supported for quantization method halves[\s\S]*float32"
    ):
        check_act_dtype(Halves(), torch.bfloat16)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("gptq", "quant_config of the linear layer 'up'[\\s\\S]*it is 'gptq'"),
        (None, "'halves' gives .* no LinearMethod"),
    ],
)
def test_what_is_no_configuration_or_no_method_is_refused_with_the_layers_name(
    config: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method's name for its configuration, a class for an object of it."""
    monkeypatch.setattr(Halves, "get_quant_method", lambda *_: HalvesMethod)
    with opdock.set_current_config(), pytest.raises(ConfigError, match=message) as caught:
        ReplicatedLinear(8, 8, quant_config=config or Halves(), prefix="up")
    assert caught.value.who
    assert caught.value.remedy


def test_a_layer_takes_the_method_of_its_configuration() -> None:
    """With no configuration the weight stays as it is; with none for the layer, its name is in the error."""
    with opdock.set_current_config():
        assert isinstance(ReplicatedLinear(4, 2).quant_method, UnquantizedLinearMethod)
        layer = MergedColumnParallelLinear(4, [2, 3], bias=False, quant_config=Halves(), prefix="model.gate_up_proj")
        assert isinstance(layer.quant_method, HalvesMethod)
        with pytest.raises(ConfigError, match=r"'halves' has nothing for the linear layer 'model.none'"):
            ReplicatedLinear(4, 2, quant_config=Halves(), prefix="model.none")


def test_a_third_partys_weights_are_made_ready_once_and_can_be_loaded_again() -> None:
    """Into the same memory."""
    from opdock.nn.quantization import finish_loading, start_loading

    with opdock.set_current_config():
        layer = cast("Any", MergedColumnParallelLinear(4, [2, 3], bias=False, quant_config=Halves()))
    first, second = torch.randn(2, 4), torch.randn(3, 4)
    places = set()
    for _ in range(2):
        start_loading(layer)
        layer.weight_loader(layer.weight, 2 * second, 1)
        layer.weight_loader(layer.weight, 2 * first, 0)
        finish_loading(layer)
        finish_loading(layer)
        places.add(layer.weight.data_ptr())
        torch.testing.assert_close(layer.weight.data, torch.cat((first, second)))
    assert len(places) == 1


def test_a_platform_registers_its_methods_before_one_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once; a hook that raises is asked again, and leaves nothing."""
    calls = []

    def hook(cls: type, parser: object = None) -> None:
        calls.append(parser)
        register_quantization_config("halves")(Halves)
        if len(calls) == 1:
            raise RuntimeError("not yet")

    with opdock.set_current_config():
        monkeypatch.setattr(type(context.platform()), "pre_register_and_update", classmethod(hook))
        quant_config._registered.clear()
        with pytest.raises(PlatformFailedError, match=r"pre_register_and_update[\s\S]*RuntimeError: not yet") as caught:
            quant_config.let_platform_register()
        assert isinstance(caught.value.__cause__, RuntimeError)
        assert "halves" not in quantization_methods()
        quant_config.let_platform_register()
        quant_config.let_platform_register()
        assert "halves" in quantization_methods()
    assert len(calls) == 2
    quant_config._registered.clear()


def test_a_method_says_whether_it_has_an_embedding() -> None:
    """By overriding it."""
    assert not method_has_implemented_embedding(UnquantizedLinearMethod)
    assert method_has_implemented_embedding(type("E", (UnquantizedLinearMethod,), {"embedding": lambda *_: None}))


@pytest.mark.parametrize("first", ["opdock.nn.quantization", "opdock.nn.layers", "opdock.nn.quantization.fp8"])
def test_either_package_can_be_imported_first(first: str) -> None:
    """They need each other."""
    code = f"import {first}, opdock.nn.layers, opdock.nn.quantization.gptq"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("method", ["gptq", "awq", "compressed-tensors"])
def test_a_method_of_a_tool_does_not_quantise_floats_while_they_are_loaded(method: str) -> None:
    """And what can is named."""
    with pytest.raises(UnsupportedError, match=r"checkpoint of floats[\s\S]*int8_w8a8"):
        get_quantization_config(method).from_config({})
