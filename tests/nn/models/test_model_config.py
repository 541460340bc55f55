"""Configurations read from config.json and from GGUF metadata."""

from __future__ import annotations

from typing import Any

import pytest

from opdock.errors import CheckpointError, UnsupportedError
from opdock.nn.models.architectures import (
    Architecture,
    architectures,
    find_architecture,
    find_gguf_architecture,
)
from opdock.nn.models.config import ModelConfig
from opdock.nn.models.families import config_from_gguf, config_from_hf

RAW: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
META: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 128,
    "llama.block_count": 2,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.context_length": 256,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.vocab_size": 100,
}


def _hf(name: str = "LlamaForCausalLM", **changes: Any) -> ModelConfig:
    return config_from_hf({**RAW, **changes}, "config.json", name=name)


def test_each_family_has_its_biases_and_norms() -> None:
    """Qwen2 has biases on q, k and v; Qwen3 norms each head; Llama says so itself."""
    llama, biased = _hf(), _hf(attention_bias=True, mlp_bias=True)
    assert not (llama.qkv_bias or llama.o_bias or llama.mlp_bias or llama.qk_norm)
    assert biased.qkv_bias and biased.o_bias and biased.mlp_bias
    qwen2, qwen3 = _hf("Qwen2ForCausalLM"), _hf("Qwen3ForCausalLM")
    assert qwen2.qkv_bias and not qwen2.o_bias and not qwen2.qk_norm
    assert qwen3.qk_norm and not qwen3.qkv_bias and qwen3.head_dim == 128


def test_rotary_parameters_are_read_from_both_spellings() -> None:
    """Newer files have one mapping, older ones two fields."""
    new = _hf(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0})
    old = _hf(rope_theta=5000.0, rope_scaling={"type": "linear", "factor": 2.0})
    for config in (new, old):
        assert config.rope_theta == 5000.0
        assert config.rope_scaling["rope_type"] == "linear" and config.rope_scaling["factor"] == 2.0
    assert _hf(rope_scaling=None).rope_scaling["rope_type"] == "default"


def test_defaults_fill_what_older_files_leave_out() -> None:
    """As many key heads as query heads, head size from hidden size."""
    raw = {k: v for k, v in RAW.items() if k not in ("num_key_value_heads", "rms_norm_eps")}
    config = config_from_hf(raw, "config.json", name="LlamaForCausalLM")
    assert (config.num_kv_heads, config.head_dim, config.rotary_dim, config.rms_norm_eps) == (4, 16, 16, 1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "torch.bfloat16"])
def test_the_stored_dtype_is_read_from_both_spellings(dtype: str) -> None:
    """``dtype`` and ``torch_dtype``."""
    assert _hf(dtype=dtype).dtype == _hf(torch_dtype=dtype).dtype == "bfloat16"
    assert _hf().dtype is None


@pytest.mark.parametrize("eos", [2, [2, 7]])
def test_ending_tokens_may_be_one_or_many(eos: Any) -> None:
    """Chat models have more than one."""
    assert _hf(eos_token_id=eos).eos_token_ids == ((2,) if eos == 2 else (2, 7))


@pytest.mark.parametrize("name", [k for k in RAW if k not in ("num_key_value_heads", "rms_norm_eps")])
def test_a_missing_number_is_named(name: str) -> None:
    """One error, with the file."""
    raw = {k: v for k, v in RAW.items() if k != name}
    with pytest.raises(CheckpointError, match=f"no '{name}'[\\s\\S]*config.json[\\s\\S]*Remedy:"):
        config_from_hf(raw, "config.json", name="LlamaForCausalLM")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": "64"}, "not a number: '64'"),
        ({"hidden_size": 64.5}, "not a whole number"),
        ({"num_hidden_layers": True}, "not a number: True"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"num_key_value_heads": 3}, "4 query heads cannot share 3"),
        ({"num_attention_heads": 0, "num_key_value_heads": 1}, "num_heads is 0"),
        ({"head_dim": 15}, "rotary_dim 15 is odd"),
        ({"num_hidden_layers": 10**12}, "more than 10000"),
        ({"max_position_embeddings": 10**12}, "more than"),
        ({"rope_scaling": {"type": "linear"}}, "lacks factor"),
        ({"rope_scaling": "linear"}, "no mapping"),
    ],
)
def test_impossible_numbers_are_refused(changes: dict[str, Any], message: str) -> None:
    """Before anything is built."""
    with pytest.raises(CheckpointError, match=message):
        _hf(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "relu"}, "activation 'relu'"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "type 'longrope'"),
        ({"use_sliding_window": True}, "sliding window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding window"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
    ],
)
def test_what_is_not_done_yet_is_said(changes: dict[str, Any], message: str) -> None:
    """Never computed wrongly without a word."""
    with pytest.raises(UnsupportedError, match=message):
        _hf(**changes)


def test_gguf_metadata_gives_the_same_facts() -> None:
    """Biases, norms and tying are told by the tensors that are there."""
    config = config_from_gguf(META, frozenset({"output.weight"}), "m.gguf", name="LlamaForCausalLM")
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.rope_theta) == (4, 2, 16, 10000.0)
    assert not config.tie_word_embeddings and not config.qkv_bias and not config.qk_norm
    names = frozenset({"blk.0.attn_q.bias", "blk.0.attn_q_norm.weight"})
    other = config_from_gguf(META, names, "m.gguf", name="LlamaForCausalLM")
    assert other.tie_word_embeddings and other.qkv_bias and other.qk_norm


def test_gguf_scalings_are_read() -> None:
    """A linear factor, and a table of factors."""
    linear = {**META, "llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    config = config_from_gguf(linear, frozenset(), "m.gguf", name="LlamaForCausalLM")
    assert config.rope_scaling == {"rope_type": "linear", "factor": 4.0}
    table = {**META, "rope_freqs.weight": [1.0] * 8}
    config = config_from_gguf(table, frozenset({"rope_freqs.weight"}), "m.gguf", name="LlamaForCausalLM")
    assert config.rope_scaling["rope_type"] == "factors"
    yarn = {**META, "llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}
    with pytest.raises(UnsupportedError, match="yarn"):
        config_from_gguf(yarn, frozenset(), "m.gguf", name="LlamaForCausalLM")


def test_gguf_experts_are_refused() -> None:
    """A mixture of experts is another model."""
    with pytest.raises(UnsupportedError, match="mixture of experts"):
        config_from_gguf({**META, "llama.expert_count": 8}, frozenset(), "m.gguf", name="LlamaForCausalLM")


def test_an_unknown_architecture_lists_the_known_ones() -> None:
    """With the nearest."""
    with pytest.raises(CheckpointError, match="Did you mean 'Qwen3ForCausalLM'[\\s\\S]*LlamaForCausalLM"):
        find_architecture("Qwen3xForCausalLM", "config.json")
    with pytest.raises(CheckpointError, match="Known: llama, qwen2, qwen3"):
        find_gguf_architecture("mamba", "m.gguf")


def test_a_package_can_add_an_architecture() -> None:
    """The registry takes it, and gives it back."""
    added = Architecture("OtherForCausalLM", "somewhere:Other", from_hf=lambda raw, source: _hf())
    registration = architectures.register(added.name, added)
    try:
        assert find_architecture("OtherForCausalLM", "config.json") is added
    finally:
        registration.undo()
    assert "OtherForCausalLM" not in architectures.view
