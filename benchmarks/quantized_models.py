"""Perplexity of SmolLM2 on a text with quantised linear layers, against bfloat16.

    python benchmarks/quantized_models.py [--tokens N] [--threads N] [--out benchmarks/results]

fp8 and int8 are made when the weights are loaded, from the floats of the GGUF file. The 4-bit models are checkpoints
in the format of compressed-tensors that this script writes (rounded to the nearest, nothing is calibrated) and loads
like any other. The text is Python's own documentation of its language, as ``pydoc`` has it. Exit status 1 if a bound
is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from record import Result, Row, write
from safetensors.torch import save_file

import opdock
from opdock.nn.generation import load_model
from opdock.nn.loading import build_model
from opdock.nn.models.checkpoint import check_header, checkpoint_plan, load_weights
from opdock.nn.models.loader_gguf import GGUFCheckpoint
from opdock.nn.models.loader_hf import HFCheckpoint
from opdock.nn.models.quantised import quantised_plan, relevant_shapes
from opdock.nn.models.resolve import resolve_model
from opdock.nn.quantization import finish_loading
from opdock.nn.quantization.layouts import pack
from opdock.nn.quantization.reloading import nbytes
from opdock.nn.quantization.rounding import quantise_int4

BOUNDS = {"fp8": 1.05, "fp8 in blocks": 1.05, "int8": 1.05, "int4, groups of 32": 1.35, "int4, groups of 64": 1.5}
"""The largest ratio to the perplexity in bfloat16; the GGUF file is 4-bit already, and is rounded again here."""

WINDOW = 512


def write_int4(folder: Path, source: GGUFCheckpoint, group: int) -> None:
    """Write a compressed-tensors checkpoint with 4-bit linear layers with zero points."""
    tensors = {}
    for name, tensor in source.read():
        module, _, last = name.rpartition(".")
        if not (last == "weight" and module.endswith("_proj")):
            tensors[name] = tensor.bfloat16().contiguous()
            continue
        codes, scales, zeros = quantise_int4(tensor, group, zero_points=True)
        if zeros is None:
            raise TypeError(f"{module} has no zero points")
        tensors |= {
            f"{module}.weight_packed": pack(codes, 1),
            f"{module}.weight_scale": scales.t().contiguous().bfloat16(),
            f"{module}.weight_zero_point": pack(zeros.t(), 0).contiguous(),
            f"{module}.weight_shape": torch.tensor(tensor.shape),
        }
    save_file(tensors, folder / "model.safetensors")
    facts = source.config
    weights = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": group}
    described = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
        "ignore": ["lm_head"],
    }
    raw = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": facts.vocab_size,
        "hidden_size": facts.hidden_size,
        "intermediate_size": facts.intermediate_size,
        "num_hidden_layers": facts.num_layers,
        "num_attention_heads": facts.num_heads,
        "num_key_value_heads": facts.num_kv_heads,
        "rms_norm_eps": facts.rms_norm_eps,
        "max_position_embeddings": facts.max_position,
        "rope_theta": facts.rope_theta,
        "tie_word_embeddings": facts.tie_word_embeddings,
        "torch_dtype": "bfloat16",
        "quantization_config": described,
    }
    (folder / "config.json").write_text(json.dumps(raw))


def load_folder(folder: Path) -> Any:
    """Return the model of a folder without a tokenizer, in bfloat16 on the CPU."""
    checkpoint = HFCheckpoint(folder)
    plan = quantised_plan(checkpoint_plan(checkpoint.config), checkpoint.config.quant_config, torch.bfloat16)
    check_header(plan, relevant_shapes(checkpoint.shapes(), plan), checkpoint.config, checkpoint.source)
    model = build_model(checkpoint.config, torch.bfloat16, torch.device("cpu"))
    load_weights(model, plan, checkpoint)
    finish_loading(model)
    return model


def models(path: Path, folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield (name, model), one in memory at a time."""
    from opdock.nn.quantization.fp8 import Fp8Config

    blocks = Fp8Config(weight_block_size=[128, 128])
    yield "bfloat16", load_model(path, dtype="bfloat16").model
    yield "fp8", load_model(path, dtype="bfloat16", quantization="fp8").model
    yield "fp8 in blocks", load_model(path, dtype="bfloat16", quantization=blocks).model
    yield "int8", load_model(path, dtype="bfloat16", quantization="int8_w8a8").model
    for group in (32, 64):
        write_int4(folder, GGUFCheckpoint(path), group)
        yield f"int4, groups of {group}", load_folder(folder)


def perplexity(model: Any, tokens: torch.Tensor) -> float:
    """Return exp of the mean negative log-likelihood of each token after the first of its window."""
    total, count = 0.0, 0
    for window in tokens.split(WINDOW):
        logits = model.compute_logits(model(window, torch.arange(len(window)))).float()
        total += float(torch.nn.functional.cross_entropy(logits[:-1], window[1:], reduction="sum"))
        count += len(window) - 1
    return math.exp(total / count)


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, help="folder for quantized_models.json and quantized_models.txt")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    path = resolve_model("smollm2")
    rows: list[Row] = []
    raw: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, opdock.set_current_config(), torch.inference_mode():
        text = "\n".join(topics[name] for name in sorted(topics))[: given.tokens * 8]
        tokens = torch.tensor(load_model(path, dtype="bfloat16").tokenizer.encode(text)[: given.tokens])
        for name, model in models(path, Path(folder)):
            found, size = perplexity(model, tokens), nbytes(model) / 1e6
            raw |= {f"perplexity, {name}": found, f"megabytes, {name}": size}
            rows.append((f"perplexity, {name}", found, "", None, "<="))
            rows.append((f"weights, {name}", size, "MB", None, "<="))
            if name in BOUNDS:
                rows.append((f"{name} over bfloat16", found / raw["perplexity, bfloat16"], "x", BOUNDS[name], "<="))
            print(f"{name}: {found:.3f}, {size:.1f} MB", flush=True)
    conditions = (
        f"SmolLM2-135M-Instruct from its Q4_1 GGUF file; {len(tokens)} tokens of pydoc's topics in windows of "
        f"{WINDOW}; CPU, {given.threads} threads, activations bfloat16. Embedding and norms stay bfloat16."
    )
    result = Result("quantized_models", conditions, ["torch", "opdock"], rows, raw)
    print(result.conditions + "\n\n" + result.table())
    if given.out is not None:
        write(result, given.out)
    return int(bool(result.missed()))


if __name__ == "__main__":
    sys.exit(main())
