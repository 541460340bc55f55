"""Odd but legal quantised checkpoints mean what they hold; ones that contradict themselves are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from opdock.errors import CheckpointError, ConfigError, UnsupportedError

safetensors = pytest.importorskip("safetensors.torch")
pytestmark = pytest.mark.usefixtures("config")

NEAR = 2e-3
FP8: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}


def _float8(weight: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    q = (weight.double() / scale.double()).float().to(torch.float8_e4m3fn)
    return q, (q.double() * scale.double()).float()


def _round_inputs(model: Any, scale: float | None = None) -> None:
    """Let transformers' quantised layers round what comes in, in float64; one scale, or one for each row."""

    def rounded(x: torch.Tensor) -> torch.Tensor:
        wide = x.double()
        by = torch.tensor(scale).double() if scale else wide.abs().amax(-1, keepdim=True) / 448
        return ((wide / by).clamp(-448, 448).float().to(torch.float8_e4m3fn).double() * by).float()

    for name, module in model.named_modules():
        if name.endswith("_proj"):
            module.register_forward_pre_hook(lambda _module, args: (rounded(args[0]),))


def _error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).double().pow(2).mean().sqrt() / theirs.double().std())


def _edit(folder: Path, change: Any) -> None:
    """Let ``change`` edit the checkpoint's tensors in place."""
    file = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in safetensors.load_file(file).items()}
    change(tensors)
    safetensors.save_file(tensors, file, metadata={"format": "pt"})


def _describe(folder: Path, **changes: Any) -> None:
    raw = json.loads((folder / "config.json").read_text())
    raw["quantization_config"] |= changes
    (folder / "config.json").write_text(json.dumps(raw))


def _words(codes: torch.Tensor) -> torch.Tensor:
    """Return eight 4-bit codes of each column's rows as one int32, the first in the lowest bits."""
    grouped = codes.long().unflatten(0, (-1, 8))
    words = sum(grouped[:, i] << (4 * i) for i in range(8))
    assert isinstance(words, torch.Tensor)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def _gptq(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Groups of 32 inputs, every zero point 8, stored less one."""
    outputs, inputs = weight.shape
    parts = weight.double().unflatten(1, (-1, 32))
    scales = (parts.abs().amax(-1, keepdim=True) / 7.5).float().double()
    codes = (parts / scales + 8).round().clamp(0, 15)
    floats = ((codes - 8) * scales).flatten(1).float()
    return {
        "qweight": _words(codes.flatten(1).t()),
        "qzeros": torch.full((inputs // 32, outputs // 8), 0x77777777, dtype=torch.int32),
        "scales": scales.squeeze(-1).t().float(),
        "g_idx": (torch.arange(inputs) // 32).to(torch.int32),
    }, floats


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_scale_may_have_dimensions_of_one(
    packed: Any, loaded: Any, logits: Any, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    """And any floating-point dtype."""

    def quantise(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        scale = (weight.abs().max() / 448).to(dtype)
        q, floats = _float8(weight, scale)
        return {"weight": q, "weight_scale": scale.reshape(shape)}, floats

    folder, reference = packed(quantise, FP8)
    _round_inputs(reference)
    assert _error(logits(loaded(folder)), logits(reference)) < NEAR


def _eight_bits(kind: str) -> dict[str, Any]:
    """Describe 8-bit weights with a scale for each output, and rows with one each, as compressed-tensors does."""
    args = {"num_bits": 8, "type": kind, "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**args, "strategy": "channel"},
        "input_activations": {**args, "strategy": "token", "dynamic": True},
    }
    return {
        "quant_method": "compressed-tensors",
        "format": f"{kind}-quantized",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }


@pytest.mark.parametrize("column", [True, False])
def test_a_scale_for_each_output_may_be_a_column_or_not(packed: Any, loaded: Any, logits: Any, *, column: bool) -> None:
    def quantise(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        scale = weight.abs().amax(1, keepdim=True) / 448
        q, floats = _float8(weight, scale)
        return {"weight": q, "weight_scale": scale if column else scale.view(-1)}, floats

    folder, reference = packed(quantise, _eight_bits("float"))
    _round_inputs(reference)
    assert _error(logits(loaded(folder)), logits(reference)) < NEAR


@pytest.mark.parametrize("static", [True, False])
def test_the_names_of_transformers_for_one_scale_of_a_tensor(
    packed: Any, loaded: Any, logits: Any, *, static: bool
) -> None:
    """It calls them weight_scale_inv, as those of blocks, and activation_scale."""

    def quantise(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        scale = weight.abs().max() / 448
        q, floats = _float8(weight, scale)
        more = {"activation_scale": torch.tensor(0.01)} if static else {}
        return {"weight": q, "weight_scale_inv": scale, **more}, floats

    described = {"quant_method": "fp8", "activation_scheme": "static" if static else "dynamic"}
    folder, reference = packed(quantise, {**described, "weight_block_size": None})
    _round_inputs(reference, 0.01 if static else None)
    assert _error(logits(loaded(folder)), logits(reference)) < NEAR


def test_biases_of_zero_that_tools_of_gptq_store_change_nothing(packed: Any, loaded: Any, logits: Any) -> None:
    """Other ones would be lost without a word."""
    folder, reference = packed(_gptq, GPTQ)
    expected = logits(reference)
    _edit(
        folder, lambda t: t.update({f"{n[:-8]}.bias": torch.zeros(t[n].shape[1]) for n in t if n.endswith(".qweight")})
    )
    torch.testing.assert_close(logits(loaded(folder)), expected, atol=2e-5, rtol=2e-5)
    _edit(folder, lambda t: t["model.layers.1.mlp.down_proj.bias"].add_(0.5))
    with pytest.raises(CheckpointError, match=r"layer model.layers.1.mlp.down_proj[\s\S]*bias is not all zero"):
        loaded(folder)


@pytest.mark.parametrize("name", ["weight_zero_point", "input_zero_point"])
def test_zero_points_in_a_symmetric_checkpoint_are_zero_or_refused(
    packed: Any, loaded: Any, logits: Any, name: str
) -> None:
    """Left out, every product would be off by them."""

    def quantise(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        scale = weight.abs().amax(1, keepdim=True) / 127
        codes = (weight / scale).round()
        stored = {"weight": codes.to(torch.int8), "weight_scale": scale, name: torch.zeros(1, dtype=torch.int8)}
        return stored, codes * scale

    folder, _ = packed(quantise, _eight_bits("int"))
    assert logits(loaded(folder)).isfinite().all()
    _edit(folder, lambda t: t[f"model.layers.0.mlp.up_proj.{name}"].fill_(3))
    with pytest.raises(CheckpointError, match=rf"zero points[\s\S]*layer model.layers.0.mlp.up_proj[\s\S]*{name}"):
        loaded(folder)


def test_packed_zero_points_in_a_symmetric_checkpoint_are_8_or_refused(packed: Any, loaded: Any, logits: Any) -> None:
    def quantise(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        stored, floats = _gptq(weight)
        return {
            "weight_packed": stored["qweight"].t(),
            "weight_scale": stored["scales"].t(),
            "weight_shape": torch.tensor(weight.shape),
            "weight_zero_point": torch.full((weight.shape[0] // 8, weight.shape[1] // 32), -0x77777778).int(),
        }, floats

    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
    described = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
    }
    folder, reference = packed(quantise, described)
    torch.testing.assert_close(logits(loaded(folder)), logits(reference), atol=2e-5, rtol=2e-5)
    _edit(folder, lambda t: t["model.layers.0.mlp.up_proj.weight_zero_point"].add_(1))
    with pytest.raises(CheckpointError, match=r"zero points[\s\S]*up_proj.weight_zero_point is not all 8"):
        loaded(folder)


def test_a_quantised_head_is_refused_by_its_name(packed: Any, loaded: Any) -> None:
    """Nothing is gained by downloading it again."""
    folder, _ = packed(_gptq, {**GPTQ, "lm_head": True})

    def change(tensors: dict[str, torch.Tensor]) -> None:
        stored, _ = _gptq(tensors.pop("lm_head.weight"))
        tensors |= {f"lm_head.{name}": tensor.contiguous() for name, tensor in stored.items()}

    _edit(folder, change)
    with pytest.raises(
        CheckpointError, match=r"quantised in the file and plain here:\s+lm_head\n[\s\S]*leaves lm_head"
    ):
        loaded(folder)


def test_a_quantised_head_of_a_model_that_shares_its_embedding_is_refused_by_its_name(packed: Any, loaded: Any) -> None:
    folder, _ = packed(_gptq, {**GPTQ, "lm_head": True})
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, "tie_word_embeddings": True}))

    def change(tensors: dict[str, torch.Tensor]) -> None:
        stored, _ = _gptq(tensors.pop("lm_head.weight"))
        tensors |= {f"lm_head.{name}": tensor.contiguous() for name, tensor in stored.items()}
        tensors["model.norm.extra"] = torch.ones(1)

    _edit(folder, change)
    with pytest.raises(CheckpointError, match=r"1 quantised in the file and plain here:\s+lm_head\n"):
        loaded(folder)


def test_layers_that_are_plain_in_the_file_are_named(packed: Any, loaded: Any) -> None:
    """They are missing from the configuration's list, not from the file."""

    def quantise(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        return {"weight": weight.clone()}, weight

    folder, _ = packed(quantise, GPTQ)
    with pytest.raises(CheckpointError, match=r"14 plain in the file[\s\S]*Remedy: list down_proj, gate_proj, "):
        loaded(folder)


def test_parts_of_a_fused_layer_are_refused_before_the_header_is_compared(packed: Any, loaded: Any) -> None:
    """Else the message would be about tensors that are there."""
    folder, _ = packed(_gptq, {**GPTQ, "modules_to_not_convert": ["q_proj"]})
    with pytest.raises(ConfigError, match=r"qkv_proj' are ignored[\s\S]*ignored:  model.layers.0.self_attn.q_proj"):
        loaded(folder)


def test_a_tensor_of_another_kind_of_numbers_is_named_with_its_file(packed: Any, loaded: Any) -> None:
    folder, _ = packed(_gptq, GPTQ)
    name = "model.layers.1.mlp.down_proj.qzeros"
    _edit(folder, lambda t: t.update({name: t[name].long()}))
    with pytest.raises(CheckpointError, match=rf"tensor {name}[\s\S]*int32[\s\S]*int64") as caught:
        loaded(folder)
    assert str(folder) in str(caught.value)


def test_5_bit_exponents_are_refused_with_the_tensors_name(packed: Any, loaded: Any) -> None:
    """The kernels multiply the other 8-bit float."""

    def quantise(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        return {"weight": weight.to(torch.float8_e5m2), "weight_scale": torch.tensor(1.0)}, weight

    folder, _ = packed(quantise, FP8)
    with pytest.raises(UnsupportedError, match=r"proj.weight' has dtype F8_E5M2[\s\S]*F8_E4M3[\s\S]*Remedy"):
        loaded(folder)


@pytest.mark.parametrize(
    "described", ["gptq", {"bits": 4}, {"quant_method": ["gptq"]}, {"quant_method": "gptq_marlin"}]
)
def test_a_method_that_is_not_named_rightly_is_one_clear_error(packed: Any, loaded: Any, described: Any) -> None:
    folder, _ = packed(_gptq, described)
    with pytest.raises(CheckpointError, match=r"config.json[\s\S]*Remedy: ") as caught:
        loaded(folder)
    assert caught.value.why


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_scale_that_is_no_number_is_refused_with_the_tensors_name(packed: Any, loaded: Any, number: float) -> None:
    """Before it is copied: whatever layer takes it, an expert too."""
    folder, _ = packed(_gptq, GPTQ)
    name = "model.layers.1.mlp.gate_proj.scales"
    _edit(folder, lambda t: t[name][0, 3:5].fill_(number))
    with pytest.raises(CheckpointError, match=rf"{name}' holds NaN or infinite[\s\S]*2 of 1024 numbers") as caught:
        loaded(folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("wanted", ["fp9", "gptq", "fp8", 8])
def test_a_method_that_cannot_be_made_while_loading_is_refused_with_the_checkpoint(packed: Any, wanted: Any) -> None:
    """Unknown, a tool's, on top of another one, or nothing of the kind."""
    from opdock.errors import OpdockError
    from opdock.nn.loading import load_model

    def plain(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        return {"weight": weight.clone()}, weight

    folder, _ = packed(_gptq, GPTQ) if wanted == "fp8" else packed(plain, None)
    with pytest.raises(OpdockError) as caught:
        load_model(folder, quantization=wanted)
    assert str(folder / "config.json") in "\n".join(caught.value.who)
    assert repr(wanted).strip("'") in str(caught.value).lower()
    assert caught.value.why
    assert caught.value.remedy


@pytest.mark.parametrize("name", ["qkv_proj", "re:.*qkv_proj", "model.layers.0.self_attn.qkv_proj"])
def test_a_fused_layer_is_ignored_by_its_own_name(packed: Any, loaded: Any, logits: Any, name: str) -> None:
    """The checkpoint holds its parts as they are; the model and the header are compared by the same answer."""
    folder, reference = packed(_gptq, {**GPTQ, "modules_to_not_convert": [name]})

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for part in [n[:-8] for n in tensors if n.endswith(("q_proj.qweight", "k_proj.qweight", "v_proj.qweight"))]:
            if "layers.0" in part or "layers" not in name:
                for last in ("qweight", "qzeros", "scales", "g_idx"):
                    del tensors[f"{part}.{last}"]
                tensors[f"{part}.weight"] = reference.get_submodule(part).weight.detach().clone()

    _edit(folder, change)
    torch.testing.assert_close(logits(loaded(folder)), logits(reference), atol=2e-5, rtol=2e-5)
