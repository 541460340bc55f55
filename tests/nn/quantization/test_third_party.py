"""A method of a third party loads checkpoints of its own, and is asked about layers as they are built."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

from opdock.errors import CheckpointError, ConfigError
from opdock.nn.layers import (
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from opdock.nn.layers.linear import LinearBase
from opdock.nn.quantization import LinearMethodBase, QuantizationConfig, register_quantization_config

pytestmark = pytest.mark.usefixtures("taken_back", "config")

CLASSES = {
    "qkv_proj": QKVParallelLinear,
    "gate_up_proj": MergedColumnParallelLinear,
    "o_proj": RowParallelLinear,
    "down_proj": RowParallelLinear,
}


class Doubled(LinearMethodBase):
    """The checkpoint holds twice the weight; what it reads of the layer is what a layer has."""

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
        made: Any = layer
        assert (made.input_size, made.output_size) == (input_size, output_size)
        assert (made.output_partition_sizes, made.params_dtype) == (output_partition_sizes, params_dtype)
        assert (made.quant_method, type(made.quant_config)) == (self, DoubledConfig)
        data = torch.empty(sum(output_partition_sizes), input_size, dtype=params_dtype)
        layer.doubled = nn.Parameter(data, requires_grad=False)

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return nn.functional.linear(x, layer.doubled / 2, bias)  # type: ignore[arg-type, operator]


class DoubledConfig(QuantizationConfig):
    """It serves layers by their class."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.bits, self.completed, self.asked = bits, "", []  # type: ignore[var-annotated]

    def get_name(self) -> str:
        return "doubled"

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        return -1

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> DoubledConfig:
        return cls(config["bits"])

    def get_quant_method(self, layer: nn.Module, prefix: str) -> LinearMethodBase | None:
        self.asked.append((prefix, isinstance(layer, CLASSES[prefix.rpartition(".")[2]])))
        return Doubled() if isinstance(layer, LinearBase) else None

    def get_checkpoint_weight_mapper(self) -> dict[str, str]:
        return {".twice": ".doubled"}

    def maybe_update_config(self, model_name: str) -> None:
        self.completed = model_name


def _twice(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    return {"twice": 2 * weight}, weight


def test_its_checkpoint_gives_the_logits_of_transformers(packed: Any, loaded: Any, logits: Any) -> None:
    """Under its own names of tensors; of fused layers it is asked by their names, with the class that is built."""
    register_quantization_config("doubled")(DoubledConfig)
    folder, reference = packed(_twice, {"quant_method": "doubled", "bits": 32})
    model = loaded(folder, times=2)
    torch.testing.assert_close(logits(model), logits(reference), atol=2e-5, rtol=2e-5)
    config = model.config.quant_config
    assert config.completed == str(folder)
    assert {prefix.rpartition(".")[2] for prefix, _ in config.asked} == set(CLASSES)
    assert all(right for _, right in config.asked)


def test_an_error_of_its_own_is_told_with_its_class_and_the_checkpoint(packed: Any, loaded: Any) -> None:
    """And stays the cause."""
    register_quantization_config("doubled")(DoubledConfig)
    folder, _ = packed(_twice, {"quant_method": "doubled"})
    with pytest.raises(CheckpointError, match=r"DoubledConfig[\s\S]*config.json[\s\S]*KeyError: 'bits'") as caught:
        loaded(folder)
    assert "test_third_party.py" in str(caught.value)
    causes = [caught.value.__cause__, getattr(caught.value.__cause__, "__cause__", None)]
    assert any(isinstance(cause, KeyError) for cause in causes)


def test_a_checkpoint_that_does_not_fit_names_the_class_that_reads_it(packed: Any, loaded: Any) -> None:
    """A package may have taken a known name over."""
    register_quantization_config("gptq")(DoubledConfig)
    folder, _ = packed(_twice, {"quant_method": "gptq", "bits": 4})
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, "num_hidden_layers": 3}))
    with pytest.raises(CheckpointError, match=r"does not fit[\s\S]*test_third_party.DoubledConfig[\s\S]*missing"):
        loaded(folder)


class Transposed(LinearMethodBase):
    """Outputs along the second dimension, two numbers of 16 bits in one of 32, and a scale for each joined matrix."""

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
        outputs = sum(output_partition_sizes)
        made = {
            "words": (torch.zeros(input_size, outputs // 2, dtype=torch.int32), {"packed_dim": 1, "packed_factor": 2}),
            "plain": (torch.zeros(input_size, outputs), {}),
            "scale": (torch.zeros(len(output_partition_sizes)), {"needs_scalar_to_array": True}),
        }
        for name, (data, attributes) in made.items():
            parameter = nn.Parameter(data, requires_grad=False)
            for key, value in {"output_dim": 1, **attributes, **extra_weight_attrs}.items():
                setattr(parameter, key, value)
            layer.register_parameter(name, parameter)

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return x


def test_parts_of_a_fused_layer_lie_where_the_parameters_attributes_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the names that plugin authors know."""
    monkeypatch.setattr(DoubledConfig, "get_quant_method", lambda *_: Transposed())
    layer: Any = QKVParallelLinear(8, 2, 4, 2, False, quant_config=DoubledConfig(1), prefix="a.qkv_proj")
    parts = {"q": 8, "k": 4, "v": 4}
    for number, (shard, size) in enumerate(parts.items()):
        layer.weight_loader(layer.words, torch.full((8, size // 2), number, dtype=torch.int32), shard)
        layer.weight_loader(layer.plain, torch.full((8, size), float(number)), shard)
        layer.weight_loader(layer.scale, torch.tensor(float(number)), shard)
    assert layer.words[0].tolist() == [0] * 4 + [1] * 2 + [2] * 2
    assert layer.plain[7].tolist() == [0.0] * 8 + [1.0] * 4 + [2.0] * 4
    assert layer.scale.tolist() == [0.0, 1.0, 2.0]
    del layer.words.packed_dim
    with pytest.raises(
        CheckpointError, match=r"a.qkv_proj shard 'v'[\s\S]*\(8, 8\), outputs along dim[\s\S]*packed_dim"
    ):
        layer.weight_loader(layer.words, torch.zeros(8, 2, dtype=torch.int32), "v")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"from_config": classmethod(lambda _cls, _config: None)}, "makes no QuantizationConfig[\\s\\S]*returned None"),
        ({"__init__": lambda self, bits: setattr(self, "bits", bits)}, "does not call that of QuantizationConfig"),
    ],
)
def test_slips_in_a_configuration_class_are_told_with_its_name(
    packed: Any, loaded: Any, change: dict[str, Any], message: str
) -> None:
    """Not as an attribute that something has not got."""
    register_quantization_config("slip")(type("Slip", (DoubledConfig,), change))
    folder, _ = packed(_twice, {"quant_method": "slip", "bits": 4})
    with pytest.raises(ConfigError, match=rf"Slip[\s\S]*{message}") as caught:
        loaded(folder)
    assert str(folder / "config.json") in caught.value.who
