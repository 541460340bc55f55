"""Scales of an 8-bit KV cache that a checkpoint holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from opdock.errors import CheckpointError
from opdock.nn.attention import PagedKVCache
from opdock.nn.attention.paged_cache import attention_layers

safetensors = pytest.importorskip("safetensors.torch")
pytestmark = pytest.mark.usefixtures("config")

NAMES = ("self_attn.{0}_scale", "self_attn.{0}_proj.{0}_scale", "self_attn.{0}_proj.output_scale")


def _with_scales(packed: Any, names: str, numbers: dict[str, torch.Tensor]) -> Path:
    def quantise(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        scale = weight.abs().max() / 448
        return {"weight": (weight / scale).to(torch.float8_e4m3fn), "weight_scale": scale}, weight

    folder, _ = packed(quantise, {"quant_method": "fp8", "activation_scheme": "dynamic"})
    file = folder / "model.safetensors"
    tensors = safetensors.load_file(file)
    for which, number in numbers.items():
        for layer in range(2):
            tensors[f"model.layers.{layer}.{names.format(which)}"] = number * (1 + layer)
    safetensors.save_file(tensors, file, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("shape", [(), (1,)])
def test_they_become_those_of_the_attention_layers(
    packed: Any, loaded: Any, names: str, shape: tuple[int, ...]
) -> None:
    """Under each of the names that tools write; and a cache of 8 bits then holds numbers over them."""
    numbers = {"k": torch.full(shape, 0.25), "v": torch.full(shape, 0.5)}
    model = loaded(_with_scales(packed, names, numbers), times=2)
    layers = list(attention_layers(model).values())
    assert [(float(layer.k_scale), float(layer.v_scale)) for layer in layers] == [(0.25, 0.5), (0.5, 1.0)]
    PagedKVCache.for_model(model, num_blocks=2, dtype=torch.float8_e4m3fn)
    layer = layers[1]
    rows = torch.full((1, layer.num_kv_heads, layer.head_size), 3.0)
    from opdock.nn.attention import AttentionMetadata

    step = AttentionMetadata.build(query_lens=[1], seq_lens=[1], block_tables=[[1]], block_size=16)
    layer.impl.update_cache(rows, rows, layer.key_cache, layer.value_cache, step)
    assert layer.key_cache[1, 0].float().unique().tolist() == [6.0]
    assert layer.value_cache[1, 0].float().unique().tolist() == [3.0]


@pytest.mark.parametrize("number", [torch.tensor(0.0), torch.tensor(-1.0), torch.ones(4), torch.tensor(float("nan"))])
def test_what_is_no_scale_is_refused_with_its_name(packed: Any, loaded: Any, number: torch.Tensor) -> None:
    folder = _with_scales(packed, NAMES[0], {"k": number, "v": torch.tensor(1.0)})
    with pytest.raises(CheckpointError, match=r"model.layers.\d.self_attn.k_scale' is no positive number"):
        loaded(folder)


@pytest.mark.parametrize(("there", "absent"), [("k", "v"), ("v", "k")])
@pytest.mark.parametrize("names", NAMES)
def test_a_scale_of_keys_without_one_of_values_is_refused_before_anything_is_read(
    packed: Any, loaded: Any, names: str, there: str, absent: str
) -> None:
    """The other would be 1, and what it is for cut off or rounded to nothing."""
    folder = _with_scales(packed, names, {there: torch.tensor(0.5)})
    name = f"model.layers.0.{names.format(there)}"
    with pytest.raises(
        CheckpointError, match=f"2 scales of a cache without the other one:\\n  *{name} without {absent}_scale"
    ):
        loaded(folder)


def test_two_scales_for_one_cache_are_the_same_number_or_refused(packed: Any, loaded: Any) -> None:
    """Which of them were taken would depend on the order in the file."""
    folder = _with_scales(packed, NAMES[0], {"k": torch.tensor(0.5), "v": torch.tensor(1.0)})
    file = folder / "model.safetensors"
    for number, fits in ((0.5, True), (0.75, False)):
        tensors = safetensors.load_file(file)
        tensors["model.layers.0.self_attn.k_proj.k_scale"] = torch.tensor(number)
        safetensors.save_file(tensors, file, metadata={"format": "pt"})
        if fits:
            assert float(next(iter(attention_layers(loaded(folder)).values())).k_scale) == 0.5
        else:
            with pytest.raises(CheckpointError, match=r"two scales for one cache[\s\S]*k_proj.k_scale: 0.75"):
                loaded(folder)
