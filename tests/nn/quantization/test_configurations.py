"""What a checkpoint's quantization_config says is done, or refused with who, why and a remedy."""

from __future__ import annotations

import re
from typing import Any, cast

import pytest

from opdock.errors import CheckpointError, ConfigError, OpdockError, UnsupportedError
from opdock.nn.layers import ReplicatedLinear
from opdock.nn.quantization import UnquantizedLinearMethod
from opdock.nn.quantization.awq import AWQConfig
from opdock.nn.quantization.compressed_tensors import CompressedTensorsConfig
from opdock.nn.quantization.fp8 import Fp8Config
from opdock.nn.quantization.gptq import GPTQConfig

pytestmark = pytest.mark.usefixtures("config")

GPTQ = {"bits": 4, "group_size": 32}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
FP8 = {**INT8, "type": "float"}
TOKEN = {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": True, "dynamic": True}


def _method(config: Any, prefix: str) -> Any:
    layer = cast("Any", ReplicatedLinear(64, 64, False, quant_config=config, prefix=prefix))
    return layer.quant_method


def _packed(**weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {**INT4, **weights}, "input_activations": None}
    return {"format": "pack-quantized", "config_groups": {"group_0": group}}


def _scaled(weights: dict[str, Any], inputs: dict[str, Any] | None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "format": "int-quantized" if weights["type"] == "int" else "float-quantized",
        "config_groups": {"g": group},
    }


@pytest.mark.parametrize("key", ["checkpoint_format", "format"])
@pytest.mark.parametrize("name", ["gptq", "gptq_v2"])
def test_gptq_formats_are_read_under_both_names(key: str, name: str) -> None:
    """Read as the other format, every zero point is off by one."""
    assert GPTQConfig.from_config({**GPTQ, key: name}).checkpoint_format == name


def test_gptq_formats_that_contradict_one_another_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"two formats[\s\S]*checkpoint_format: gptq\n[\s\S]*format: gptq_v2"):
        GPTQConfig.from_config({**GPTQ, "checkpoint_format": "gptq", "format": "gptq_v2"})


def test_gptq_quantises_only_the_layers_that_it_lists() -> None:
    """As transformers writes the list: lists of names that were quantised together."""
    listed = [["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], ["self_attn.o_proj"], ["mlp.up_proj"]]
    config = GPTQConfig.from_config({**GPTQ, "modules_in_block_to_quantize": listed})
    config.packed_modules_mapping |= {
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }
    assert not isinstance(_method(config, "model.layers.0.self_attn.qkv_proj"), UnquantizedLinearMethod)
    assert isinstance(_method(config, "model.layers.0.mlp.down_proj"), UnquantizedLinearMethod)
    with pytest.raises(ConfigError, match=r"mlp.gate_up_proj' are quantised[\s\S]*not:  model.layers.0.mlp.gate_proj"):
        _method(config, "model.layers.0.mlp.gate_up_proj")


def test_gptq_leaves_out_what_dynamic_says_and_has_one_setting_for_the_others() -> None:
    """The tool's way to keep layers as they are; another number of bits for some is refused."""
    config = GPTQConfig.from_config({**GPTQ, "dynamic": {r"-:.*\.down_proj$": {}, "-:model.layers.3": {}}})
    plain = [_method(config, f"model.layers.{name}") for name in ("0.mlp.down_proj", "3.mlp.up_proj")]
    assert all(isinstance(method, UnquantizedLinearMethod) for method in plain)
    assert not isinstance(_method(config, "model.layers.0.mlp.up_proj"), UnquantizedLinearMethod)
    with pytest.raises(UnsupportedError, match=r"dynamic[\s\S]*\+:\.\*up_proj"):
        GPTQConfig.from_config({**GPTQ, "dynamic": {"-:a": {}, "+:.*up_proj": {"bits": 8}}})


@pytest.mark.parametrize(
    ("order", "sorted_"),
    [(None, False), (False, False), ("weight", False), ("static", False), ("group", True), ("dynamic", True)],
)
def test_each_name_of_an_activation_order_is_known(order: Any, *, sorted_: bool) -> None:
    """Two of them are other names of two others."""
    config = CompressedTensorsConfig.from_config(_packed(actorder=order))
    assert _method(config, "up").reordered == sorted_


def test_a_sparsity_that_is_none_is_no_sparsity() -> None:
    """The tool writes how many weights happen to be zero; other formats store fewer numbers."""
    dense = {"format": "dense", "global_sparsity": 0.1, "sparsity_structure": "unstructured", "targets": []}
    CompressedTensorsConfig.from_config({**_packed(), "sparsity_config": dense})
    with pytest.raises(UnsupportedError, match=r"sparsity_config[\s\S]*sparse-24-bitmask"):
        CompressedTensorsConfig.from_config({**_packed(), "sparsity_config": {"format": "sparse-24-bitmask"}})


def test_a_checkpoint_of_plain_weights_and_scales_of_the_cache_has_no_groups() -> None:
    """Every layer stays as it is; without a scheme for the cache the configuration says nothing at all."""
    config = CompressedTensorsConfig.from_config({"config_groups": {}, "kv_cache_scheme": {"num_bits": 8}})
    assert isinstance(_method(config, "model.layers.0.mlp.down_proj"), UnquantizedLinearMethod)
    assert config.get_cache_scale_mapper()
    with pytest.raises(CheckpointError, match="no config_groups"):
        CompressedTensorsConfig.from_config({"config_groups": {}, "kv_cache_scheme": None})


def test_a_name_counts_before_an_expression_and_that_before_the_class() -> None:
    """In whatever order the groups are; with the same target the last group counts. The package does the same."""
    groups = [
        (["Linear"], 32),
        (["re:.*down_proj", "re:.*up_proj"], 16),
        (["model.layers.1.mlp.down_proj", "lm.a"], 64),
        (["lm.a"], 8),
    ]
    described = {
        "format": "pack-quantized",
        "config_groups": {
            f"group_{i}": {"targets": targets, "weights": {**INT4, "group_size": size}}
            for i, (targets, size) in enumerate(groups)
        },
    }
    config = CompressedTensorsConfig.from_config(described)
    found = {
        name: _method(config, name).group_size
        for name in ("model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj", "o_proj", "lm.a")
    }
    assert list(found.values()) == [16, 64, 32, 8]
    config.packed_modules_mapping["gate_up_proj"] = ["gate_proj", "up_proj"]
    with pytest.raises(ConfigError, match=r"mlp.gate_up_proj' are in the group of [\s\S]*gate_proj"):
        _method(config, "mlp.gate_up_proj")


@pytest.mark.parametrize(
    ("weights", "inputs", "message"),
    [
        (INT8, {**TOKEN, "num_bits": 4}, "input_activations: 4 bits, type int"),
        (INT8, {**TOKEN, "type": "float"}, "input_activations: 8 bits, type float"),
        (FP8, TOKEN, "weights: 8 bits, type float"),
        (INT8, {**TOKEN, "symmetric": False}, "input_activations: symmetric False"),
        (INT8, None, "input_activations: null"),
        (
            {**FP8, "strategy": "block", "block_structure": [128, 128]},
            {**TOKEN, "type": "float", "strategy": "group", "group_size": 64},
            "groups of 64",
        ),
        (
            {**FP8, "strategy": "block", "block_structure": [128, 128]},
            {**TOKEN, "type": "float", "strategy": "tensor", "dynamic": False},
            "blocks with static activations",
        ),
        ({**FP8, "strategy": "block", "block_structure": "128x128"}, {**TOKEN, "type": "float"}, "'block_structure'"),
    ],
)
def test_activations_that_the_layer_would_not_round_so_are_refused(
    weights: dict[str, Any], inputs: dict[str, Any] | None, message: str
) -> None:
    """Computed with other numbers than the checkpoint was made for, results are wrong without a word."""
    with pytest.raises((UnsupportedError, CheckpointError), match=message):
        CompressedTensorsConfig.from_config(_scaled(weights, inputs))


@pytest.mark.parametrize("bad", [128, "128", {"a": 1}])
def test_blocks_that_are_no_list_are_one_clear_error(bad: Any) -> None:
    with pytest.raises(CheckpointError, match=r"'weight_block_size'.*is not a list of two numbers[\s\S]*Remedy"):
        Fp8Config.from_config({"quant_method": "fp8", "weight_block_size": bad})


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda names: Fp8Config.from_config({"quant_method": "fp8", "ignored_layers": names}), "ignored_layers"),
        (lambda names: AWQConfig.from_config({**GPTQ, "modules_to_not_convert": names}), "modules_to_not_convert"),
        (lambda names: CompressedTensorsConfig.from_config({**_packed(), "ignore": names}), "ignore"),
        (
            lambda names: CompressedTensorsConfig.from_config(
                {"format": "pack-quantized", "config_groups": {"g": {"targets": names, "weights": INT4}}}
            ),
            "targets",
        ),
    ],
)
def test_a_broken_expression_is_one_clear_error(make: Any, key: str) -> None:
    """When the configuration is read, with the field's name."""
    with pytest.raises(CheckpointError, match=rf"'{key}'.*regular expressions: 're:\*a'[\s\S]*nothing to repeat"):
        make(["lm_head", "re:*a"])


def test_a_list_that_is_null_does_not_hide_the_other_one() -> None:
    """Tools write the same list under two names, and leave one null."""
    described = {"quant_method": "fp8", "ignored_layers": None, "modules_to_not_convert": ["mlp"]}
    assert Fp8Config.from_config(described).ignored == ["mlp"]


@pytest.mark.parametrize(
    ("lists", "listed"),
    [
        (Fp8Config(ignored_layers=["lm_head", "re:.*gate"]), "lm_head, re:.*gate"),
        (GPTQConfig.from_config({**GPTQ, "modules_in_block_to_quantize": ["mlp.up_proj"]}), "mlp.up_proj"),
        (CompressedTensorsConfig.from_config({**_packed(), "ignore": ["lm_head"]}), "lm_head"),
    ],
)
def test_a_layer_without_a_prefix_is_refused_where_layers_are_listed(lists: Any, listed: str) -> None:
    """It could not be found in the list, and would be quantised though it is in it."""
    with pytest.raises(ConfigError, match=rf"without a prefix[\s\S]*lists {re.escape(listed)}\n[\s\S]*prefix="):
        ReplicatedLinear(64, 64, False, quant_config=lists)
    for alike in (Fp8Config(), GPTQConfig.from_config(GPTQ), CompressedTensorsConfig.from_config(_packed())):
        ReplicatedLinear(64, 64, False, quant_config=alike)


@pytest.mark.parametrize(
    "make",
    [
        lambda: GPTQConfig.from_config({**GPTQ, "bits": 8}),
        lambda: GPTQConfig.from_config({**GPTQ, "checkpoint_format": "marlin"}),
        lambda: GPTQConfig.from_config({**GPTQ, "dynamic": {"+:.*": {"bits": 8}}}),
        lambda: GPTQConfig.from_config({}),
        lambda: AWQConfig.from_config({**GPTQ, "version": "gemv"}),
        lambda: Fp8Config.from_config({"quant_method": "fp8", "weight_block_size": [64, 64]}),
        lambda: Fp8Config.from_config({"activation_scheme": "static"}),
        lambda: CompressedTensorsConfig.from_config(_scaled(INT8, None)),
        lambda: CompressedTensorsConfig.from_config({"config_groups": {}, "format": "dense"}),
    ],
)
def test_every_refusal_says_why_and_what_to_do(make: Any) -> None:
    with pytest.raises(OpdockError) as caught:
        make()
    assert caught.value.why
    assert caught.value.remedy
