"""Scales of 8-bit caches of a whole model."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest
import torch

from opdock.errors import ConfigError, OrderError
from opdock.nn.attention import (
    AttentionMetadata,
    PagedKVCache,
    attention_layers,
    calculate_kv_scales,
    set_forward_context,
)
from opdock.nn.loading import build_model
from opdock.nn.models import ModelConfig
from opdock.nn.models.facts import LatentConfig

pytestmark = pytest.mark.usefixtures("config")

E4M3 = torch.float8_e4m3fn
CONFIG = ModelConfig(
    architecture="LlamaForCausalLM", vocab_size=100, hidden_size=32, intermediate_size=64, num_layers=2, num_heads=4,
    num_kv_heads=2, head_dim=8, rms_norm_eps=1e-5, max_position=64,
)  # fmt: skip
LATENT = dataclasses.replace(
    CONFIG, architecture="DeepseekV3ForCausalLM", latent=LatentConfig(24, 8, 8, 8), num_kv_heads=4
)
TEXT = list(range(40))


def _model(config: ModelConfig) -> Any:
    model = build_model(config, torch.float32, torch.device("cpu"))
    torch.manual_seed(3)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.2)
    return model


def _large(model: Any) -> Any:
    """Give keys and values numbers that an 8-bit cache without scales does not hold."""
    for layer in model.model.layers:
        attention = layer.self_attn
        attention.qkv_proj.weight.data[32:48] *= 100  # keys
        attention.qkv_proj.weight.data[:32] /= 100  # queries: the scores stay
        attention.qkv_proj.weight.data[48:] *= 1000  # values
        attention.o_proj.weight.data /= 1000
    return model


def _hidden(model: Any, cache_dtype: torch.dtype) -> torch.Tensor:
    """Return the hidden rows of the text over a paged cache of a dtype."""
    cache = PagedKVCache.for_model(model, num_blocks=3, dtype=cache_dtype)
    step = AttentionMetadata.build(query_lens=[40], seq_lens=[40], block_tables=[[0, 1, 2]], block_size=16)
    with torch.inference_mode(), set_forward_context(step, cache):
        found: torch.Tensor = model(torch.tensor(TEXT), torch.arange(40))
    cache.unbind()
    return found


def test_they_are_the_largest_keys_and_values_of_the_text() -> None:
    """By the projections themselves: of the first layer, whose values are not rotated."""
    model = _model(CONFIG)
    calculate_kv_scales(model, TEXT, E4M3)
    hidden = model.model.layers[0].input_layernorm(model.model.embed_tokens(torch.tensor(TEXT)))
    values = hidden @ model.model.layers[0].self_attn.qkv_proj.weight[48:].T
    first, second = attention_layers(model).values()
    assert float(first.v_scale) == pytest.approx(float(values.abs().max()) / 448, rel=1e-5)
    assert first.served_by == "contiguous" and float(second.k_scale) not in (1.0, float(first.k_scale))
    assert all(not layer._forward_pre_hooks for layer in (first, second))


def test_a_cache_of_8_bits_is_of_use_with_them_where_it_was_not_without(caplog: pytest.LogCaptureFixture) -> None:
    """The log says so without them, and nothing with them."""
    model = _large(_model(CONFIG))
    wanted = _hidden(model, torch.float32)

    def error() -> float:
        return float((_hidden(model, E4M3) - wanted).abs().max())

    with caplog.at_level(logging.WARNING, "opdock"):
        without = error()
        assert "2 of 2 attention layers (model.layers.0.self_attn.attn first) have no scales" in caplog.text
        caplog.clear()
        assert error() == without and not caplog.text, "it is said once"
        calculate_kv_scales(model, TEXT, E4M3)
        assert 5 * error() < without
        assert not caplog.text


def test_latent_attention_has_them_too() -> None:
    """Its rows are both keys and values."""
    model = _model(LATENT)
    calculate_kv_scales(model, TEXT, E4M3)
    for layer in attention_layers(model).values():
        assert layer.k_scale == layer.v_scale and layer.k_scale != 1


def test_while_a_cache_is_in_use_they_stay() -> None:
    """What it holds was written over the others."""
    model = _model(CONFIG)
    cache = PagedKVCache.for_model(model, num_blocks=2)
    with pytest.raises(OrderError, match=r"layer model.layers.0.self_attn.attn[\s\S]*Remedy: close"):
        calculate_kv_scales(model, TEXT, E4M3)
    cache.unbind()


def test_a_text_that_the_model_cannot_compute_changes_none() -> None:
    """The last layer's values are infinite."""
    model = _model(CONFIG)
    model.model.layers[1].self_attn.qkv_proj.weight.data[48:] = float("inf")
    with pytest.raises(ConfigError, match=r"layer model.layers.1.self_attn.attn"):
        calculate_kv_scales(model, TEXT, E4M3)
    assert all(layer.k_scale == 1 and layer.served_by == "contiguous" for layer in attention_layers(model).values())


@pytest.mark.parametrize(
    ("text", "dtype", "words"),
    [
        ([], E4M3, "prompt is empty"),
        ([100], E4M3, "token id 100"),
        ([1] * 64, E4M3, "context holds 64"),
        ([1], torch.bfloat16, r"torch.bfloat16 has no scales[\s\S]*float8_e4m3fn"),
        ([1], torch.int8, "torch.int8 has no scales"),
    ],
)
def test_what_gives_no_scales_is_refused(text: list[int], dtype: torch.dtype, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        calculate_kv_scales(_model(CONFIG), text, dtype)


def test_a_layer_refuses_numbers_without_a_largest() -> None:
    layer = next(iter(attention_layers(_model(CONFIG)).values()))
    for given in (torch.empty(0, 8), torch.full((1, 8), float("nan"))):
        with pytest.raises(ConfigError, match="none at all, give no scale"):
            layer.calculate_kv_scales(given, given, E4M3)
    with pytest.raises(ConfigError, match="torch.int8 has no scales"):
        layer.calculate_kv_scales(torch.ones(1), torch.ones(1), torch.int8)
