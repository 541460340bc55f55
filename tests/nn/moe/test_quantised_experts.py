"""Experts quantised after loading, loaded again, and methods that are refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from opdock.errors import UnsupportedError
from opdock.nn.loading import build_model
from opdock.nn.models.checkpoint import check_header, checkpoint_plan, load_weights
from opdock.nn.models.loader_hf import HFCheckpoint
from opdock.nn.models.quantised import quantised_plan, relevant_shapes
from opdock.nn.moe import FusedMoE
from opdock.nn.moe.op import Facts, number_of
from opdock.nn.moe.quantised import experts_method
from opdock.nn.quantization.awq import AWQConfig
from opdock.nn.quantization.fp8 import Fp8Config
from opdock.nn.quantization.reloading import finish_loading, start_loading
from opdock.nn.quantization.rounding import quantise_weight


def quantised(folder: Path) -> tuple[Any, Callable[[], None]]:
    """Return our model with fp8 weights, and what loads it again."""
    checkpoint = HFCheckpoint(folder)
    config = dataclasses.replace(checkpoint.config, quant_config=Fp8Config())
    model = build_model(config, torch.float32, torch.device("cpu"))

    def load() -> None:
        start_loading(model)
        load_weights(model, checkpoint_plan(config), HFCheckpoint(folder))
        finish_loading(model)

    load()
    return model, load


@pytest.mark.parametrize("kind", ["mixtral", "qwen2_moe", "deepseek_v3"])
def test_rows_become_8_bit_floats_after_loading_and_the_model_runs(
    kind: str, config: Any, mixtures: Callable[[str], tuple[Path, Any]], load: Callable[..., Any]
) -> None:
    """Each row is that of the checkpoint, rounded; a layer's output is within 8 % of that of the floats."""
    folder, _ = mixtures(kind)
    (model, _), plain = quantised(folder), load(folder)
    layers = [[m for m in one.modules() if isinstance(m, FusedMoE)] for one in (model, plain)]
    for mine, theirs in zip(*layers, strict=True):
        assert (mine.served_by, theirs.served_by) == ("native", "torch_grouped")
        for name in ("w13_weight", "w2_weight"):
            want, scales = quantise_weight(getattr(theirs, name)[-1], torch.float8_e4m3fn, "channel")
            assert torch.equal(getattr(mine, name)[-1].float(), want.float())
            assert torch.equal(getattr(mine, f"{name}_scale")[-1], scales)
        x, logits = torch.randn(20, 64), torch.randn(20, mine.routing.num_experts)
        mine.shared_experts = theirs.shared_experts = None
        error = (mine(x, logits) - theirs(x, logits)).norm() / theirs(x, logits).norm()
        assert 1e-3 < error < 0.08
    with torch.inference_mode():
        assert model(torch.arange(5, 15), torch.arange(10)).isfinite().all()


def test_loading_again_gives_the_same_weights_in_the_same_memory(
    config: Any, mixtures: Callable[[str], tuple[Path, Any]]
) -> None:
    model, load = quantised(mixtures("mixtral")[0])
    layers = [m for m in model.modules() if isinstance(m, FusedMoE)]
    places = [p.data_ptr() for layer in layers for p in layer.parameters()]
    ids, positions = torch.arange(5, 15), torch.arange(10)
    with torch.inference_mode():
        want = model(ids, positions)
        load()
        assert torch.equal(model(ids, positions), want)
    assert [p.data_ptr() for layer in layers for p in layer.parameters()] == places


FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True}
DESCRIBED: dict[str, dict[str, Any]] = {
    "tensor": {"quant_method": "fp8", "activation_scheme": "dynamic", "ignored_layers": ["re:.*kv_b_proj"]},
    "channel": {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "ignore": ["lm_head", "re:.*gate$", "re:.*kv_b_proj"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {**FLOAT8, "strategy": "channel", "dynamic": False},
                "input_activations": {**FLOAT8, "strategy": "token", "dynamic": True},
            }
        },
    },
}


def stored(folder: Path, to: Path, per: str, *, leave: str = "kv_b_proj", **changes: Any) -> dict[str, torch.Tensor]:
    """Save a checkpoint with fp8 matrices in ``to`` and return what it stands for, by name."""
    safetensors = pytest.importorskip("safetensors.torch")
    held, meant = {}, {}
    for file in folder.glob("*.safetensors"):
        for name, weight in safetensors.load_file(file).items():
            held[name] = meant[name] = weight
            matrix = name.endswith(("proj.weight", "mqa.weight")) or ".experts." in name
            if not matrix or leave in name:
                continue
            largest = weight.abs().amax() if per == "tensor" else weight.abs().amax(1, keepdim=True)
            held[name] = (weight / (largest / 448)).to(torch.float8_e4m3fn)
            held[f"{name}_scale"] = largest / 448
            meant[name] = held[name].float() * held[f"{name}_scale"]
    safetensors.save_file(held, to / "model.safetensors", metadata={"format": "pt"})
    raw = json.loads((folder / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**raw, "quantization_config": {**DESCRIBED[per], **changes}}))
    return meant


def loaded(folder: Path, *, times: int = 1) -> Any:
    """Return our model of a folder, loaded ``times`` times."""
    checkpoint = HFCheckpoint(folder)
    facts = checkpoint.config
    plan = quantised_plan(checkpoint_plan(facts), facts.quant_config, torch.float32)
    check_header(plan, relevant_shapes(checkpoint.shapes(), plan), facts, checkpoint.source)
    model = build_model(facts, torch.float32, torch.device("cpu"))
    for _ in range(times):
        start_loading(model)
        load_weights(model, plan, checkpoint)
        finish_loading(model)
    return model


@pytest.mark.parametrize("per", list(DESCRIBED))
@pytest.mark.parametrize("kind", ["mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2"])
def test_checkpoints_of_8_bit_experts_load_and_mean_what_they_hold(
    kind: str, per: str, config: Any, tmp_path: Path, mixtures: Callable[[str], tuple[Path, Any]]
) -> None:
    """Scales of a matrix or of its rows; loaded twice; results are near those of the floats meant."""
    folder, _ = mixtures(kind)
    meant = stored(folder, tmp_path, per)
    model = loaded(tmp_path, times=2)
    layers = {name: m for name, m in model.named_modules() if isinstance(m, FusedMoE)}
    assert layers
    for name, layer in layers.items():
        at = name if kind != "mixtral" else name.replace("mlp", "block_sparse_moe")
        gate, up, down = ("w1", "w3", "w2") if kind == "mixtral" else ("gate_proj", "up_proj", "down_proj")
        for e in range(layer.routing.num_experts):
            first, second = (
                getattr(layer, f"{which}_weight")[e].float() * getattr(layer, f"{which}_weight_scale")[e, :, None]
                for which in ("w13", "w2")
            )
            want = [meant[f"{at}.experts.{e}.{part}.weight"] for part in (gate, up, down)]
            assert torch.equal(first, torch.cat(want[:2])) and torch.equal(second, want[2])
        x, logits = torch.randn(20, 64), torch.randn(20, layer.routing.num_experts)
        layer.shared_experts = None
        wide = FusedMoE(
            layer.routing.num_experts, layer.routing.top_k, 64, layer.intermediate_size, moe_backend="native"
        )
        wide.w13_weight.data.copy_(layer.w13_weight.float() * layer.w13_weight_scale[..., None])
        wide.w2_weight.data.copy_(layer.w2_weight.float() * layer.w2_weight_scale[..., None])
        wide.routing, wide._number = layer.routing, number_of(Facts("native", wide.problem, layer.routing))
        bias = layer.e_score_correction_bias
        wide.e_score_correction_bias = None if bias is None else torch.nn.Parameter(bias.data)
        error = (layer(x, logits) - wide(x, logits)).norm() / wide(x, logits).norm()
        assert 1e-3 < error < 0.08  # rows are rounded too
    with torch.inference_mode():
        assert loaded(tmp_path)(torch.arange(5, 15), torch.arange(10)).isfinite().all()


def test_experts_that_the_configuration_leaves_out_stay_as_they_are(
    config: Any, tmp_path: Path, mixtures: Callable[[str], tuple[Path, Any]]
) -> None:
    folder, _ = mixtures("mixtral")
    meant = stored(folder, tmp_path, "tensor", leave=".experts.", ignored_layers=["re:.*block_sparse_moe"])
    model = loaded(tmp_path)
    layer = next(m for m in model.modules() if isinstance(m, FusedMoE))
    assert layer.w13_weight.dtype == torch.float32 and layer.w13_weight_scale is None
    assert torch.equal(layer.w2_weight[1], meant["model.layers.0.block_sparse_moe.experts.1.w2.weight"])


def test_a_shared_expert_is_left_out_by_the_name_that_checkpoints_have_for_it(
    config: Any, tmp_path: Path, mixtures: Callable[[str], tuple[Path, Any]]
) -> None:
    """``shared_expert`` in Qwen2's, where the model's own path says ``shared_experts``."""
    folder, _ = mixtures("qwen2_moe")
    meant = stored(folder, tmp_path, "tensor", leave=".shared_expert.", ignored_layers=["re:.*mlp\\.shared_expert\\."])
    layer = next(m for m in loaded(tmp_path).modules() if isinstance(m, FusedMoE))
    assert layer.w13_weight.dtype == torch.float8_e4m3fn
    assert layer.shared_experts.down_proj.weight.dtype == torch.float32
    name = "model.layers.0.mlp.shared_expert.down_proj.weight"
    assert torch.equal(layer.shared_experts.down_proj.weight, meant[name])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weight_block_size": [128, 128]}, "scale per block, dynamic, are not loaded yet"),
        ({"activation_scheme": "static"}, "scale per tensor, static, are not loaded yet"),
        ({"ignored_layers": ["re:.*w2"]}, "matrices of an expert are quantised in different ways"),
        ({"quant_method": "awq", "bits": 4, "group_size": 32}, "'awq', Int4LinearMethod, are not loaded yet"),
    ],
)
def test_other_experts_are_refused_with_the_layers_name_before_anything_is_read(
    changes: dict[str, Any], words: str, config: Any, tmp_path: Path, mixtures: Callable[[str], tuple[Path, Any]]
) -> None:
    folder, _ = mixtures("mixtral")
    stored(folder, tmp_path, "tensor", **changes)
    with pytest.raises(UnsupportedError, match=words) as caught:
        loaded(tmp_path)
    assert "model.layers.0.mlp" in str(caught.value)


def test_a_matrix_that_latent_attention_needs_as_it_is_is_refused_quantised(
    config: Any, tmp_path: Path, mixtures: Callable[[str], tuple[Path, Any]]
) -> None:
    folder, _ = mixtures("deepseek_v3")
    stored(folder, tmp_path, "tensor", leave="nothing", ignored_layers=[])
    with pytest.raises(UnsupportedError, match=r"kv_b_proj only as it is[\s\S]*layers.0.self_attn.kv_b_proj"):
        loaded(tmp_path)


def test_a_method_that_experts_cannot_have_is_refused_with_the_layers_name() -> None:
    with pytest.raises(UnsupportedError, match="Experts that are quantised with 'awq'") as caught:
        experts_method(AWQConfig(weight_bits=4, group_size=32, zero_point=True), "model.layers.7.mlp")
    assert "model.layers.7.mlp" in str(caught.value)
