"""Checkpoints that the compressed-tensors package writes, against transformers, which runs them with that package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("compressed_tensors", reason="needs the package compressed-tensors, which is not installed")
transformers = pytest.importorskip("transformers")

from compressed_tensors.compressors import ModelCompressor  # noqa: E402
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme  # noqa: E402
from compressed_tensors.quantization.lifecycle.apply import apply_quantization_config  # noqa: E402
from compressed_tensors.quantization.utils import calculate_qparams  # noqa: E402

pytestmark = pytest.mark.usefixtures("config")

GROUPED = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
FLOAT, INT = {"num_bits": 8, "type": "float", "symmetric": True}, {"num_bits": 8, "type": "int", "symmetric": True}
TOKEN, STATIC = {"strategy": "token", "dynamic": True}, {"strategy": "tensor", "dynamic": False}
# name: format, weights, activations, the largest error relative to the deviation of the logits
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any] | None, float]] = {
    "int4": ("pack-quantized", {**GROUPED, "symmetric": True}, None, 1e-5),
    "int4 with zero points": ("pack-quantized", {**GROUPED, "symmetric": False}, None, 1e-5),
    "int4 by channel": ("pack-quantized", {**GROUPED, "strategy": "channel", "group_size": None}, None, 1e-5),
    "int4 with act-order": ("pack-quantized", {**GROUPED, "actorder": "group"}, None, 1e-5),
    "fp8 dynamic": ("float-quantized", {**FLOAT, "strategy": "channel"}, {**FLOAT, **TOKEN}, 2e-3),
    "fp8 static": ("float-quantized", {**FLOAT, "strategy": "tensor"}, {**FLOAT, **STATIC}, 2e-3),
    "int8 static": ("int-quantized", {**INT, "strategy": "channel"}, {**INT, **STATIC}, 2e-3),
    # the package divides the largest of a row by 127.5, kernels of the field and ours by 127
    "int8 dynamic": ("int-quantized", {**INT, "strategy": "channel"}, {**INT, **TOKEN}, 0.03),
}


def _ranges(weight: torch.Tensor, args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    if args.strategy == "group":
        weight = weight.unflatten(1, (-1, args.group_size))
        return weight.amin(-1), weight.amax(-1)
    if args.strategy == "channel":
        return weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    return weight.amin().view(1), weight.amax().view(1)


def _save(folder: Path, form: str, weights: dict[str, Any], inputs: dict[str, Any] | None) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 96}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, tie_word_embeddings=False)).eval()
    scheme = QuantizationScheme(
        targets=["Linear"],
        weights=QuantizationArgs(**weights),
        input_activations=None if inputs is None else QuantizationArgs(**inputs),
        format=form,
    )
    config = QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head"], format=form)
    apply_quantization_config(model, config)
    for module in model.modules():
        found = getattr(module, "quantization_scheme", None)
        if found is None:
            continue
        weight = module.weight.data
        if getattr(module, "weight_g_idx", None) is not None:
            order = torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(weight.shape[1]))
            module.weight_g_idx.data.copy_(order // found.weights.group_size)
            weight = weight[:, torch.argsort(order // found.weights.group_size, stable=True)]
        scale, zero = calculate_qparams(*_ranges(weight, found.weights), found.weights)
        module.weight_scale.data.copy_(scale.view(module.weight_scale.shape))
        if getattr(module, "weight_zero_point", None) is not None:
            module.weight_zero_point.data.copy_(zero.view(module.weight_zero_point.shape))
        if getattr(module, "input_scale", None) is not None:
            module.input_scale.data.fill_(0.03 if form == "int-quantized" else 0.01)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(folder)
    compressor.update_config(folder)


@pytest.mark.parametrize("name", list(CASES))
def test_logits(tmp_path: Path, name: str, loaded: Any, logits: Callable[[Any], torch.Tensor]) -> None:
    """The same as transformers', within the bound of the case."""
    form, weights, inputs, bound = CASES[name]
    _save(tmp_path, form, weights, inputs)
    theirs = logits(transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval())
    ours = logits(loaded(tmp_path))
    assert (ours - theirs).pow(2).mean().sqrt() <= bound * theirs.std()
