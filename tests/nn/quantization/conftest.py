"""Small Llama checkpoints whose linear layers are quantised here, by packing code of the tests' own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import opdock
from opdock.nn.loading import build_model
from opdock.nn.models.checkpoint import check_header, checkpoint_plan, load_weights
from opdock.nn.models.loader_hf import HFCheckpoint
from opdock.nn.models.quantised import quantised_plan, relevant_shapes
from opdock.nn.quantization import finish_loading, start_loading

os.environ.setdefault("HF_HUB_OFFLINE", "1")

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
TOKENS = torch.arange(3, 23)

Quantise = Callable[[torch.Tensor], tuple[dict[str, torch.Tensor], torch.Tensor]]


@pytest.fixture
def config() -> Iterator[None]:
    """A configuration in force."""
    with opdock.set_current_config():
        yield


@pytest.fixture
def packed(tmp_path: Path) -> Callable[[Quantise, dict[str, Any]], tuple[Path, Any]]:
    """Return a function that saves a random Llama with quantised layers.

    It takes a function from a weight to (tensors of the checkpoint, dequantised weight) and the
    ``quantization_config``; it returns the folder and transformers' model with the dequantised weights.
    """
    transformers = pytest.importorskip("transformers")
    save_file = pytest.importorskip("safetensors.torch").save_file

    def make(quantise: Quantise, described: dict[str, Any]) -> tuple[Path, Any]:
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()
        tensors = {}
        for name, weight in model.state_dict().items():
            module, _, last = name.rpartition(".")
            if last == "weight" and module.endswith("_proj"):
                found, floats = quantise(weight)
                tensors |= {f"{module}.{key}": value.contiguous() for key, value in found.items()}
                weight.copy_(floats)
            else:
                tensors[name] = weight.clone()
        save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
        raw = {**model.config.to_dict(), "architectures": ["LlamaForCausalLM"], "quantization_config": described}
        (tmp_path / "config.json").write_text(json.dumps(raw))
        return tmp_path, model

    return make


def load(folder: Path, *, times: int = 1) -> Any:
    """Return our model of a folder that has no tokenizer, in float32, its weights loaded ``times`` times."""
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


@pytest.fixture
def loaded() -> Callable[..., Any]:
    """Return ``load``."""
    return load


def logits_of(model: Any) -> torch.Tensor:
    """Return our model's logits of TOKENS, (tokens, vocab)."""
    with torch.no_grad():
        found: torch.Tensor = model.compute_logits(model(TOKENS, torch.arange(len(TOKENS))))
    return found


@pytest.fixture
def logits() -> Callable[[Any], torch.Tensor]:
    """Return a function from a model, ours or transformers', to its logits of some tokens."""

    def of(model: Any) -> torch.Tensor:
        if hasattr(model, "compute_logits"):
            return logits_of(model)
        with torch.no_grad():
            return model(TOKENS[None]).logits[0]

    return of
