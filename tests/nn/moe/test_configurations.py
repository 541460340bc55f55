"""What config.json files of mixtures say: which layers have experts, how they are chosen, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opdock.errors import CheckpointError, ConfigError, OpdockError, UnsupportedError
from opdock.nn.models.config import ModelConfig
from opdock.nn.models.families import config_from_hf

QWEN = {
    "num_hidden_layers": 6,
    "hidden_size": 64,
    "intermediate_size": 96,
    "vocab_size": 10,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 48,
}
DEEPSEEK = {
    **QWEN,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
}
V2 = {"norm_topk_prob": False}


def read(name: str, **changes: Any) -> ModelConfig:
    base = DEEPSEEK if name.startswith("Deepseek") else QWEN
    return config_from_hf({**base, **changes}, "config.json", name=f"{name}ForCausalLM")


@pytest.mark.parametrize(
    ("name", "changes", "layers"),
    [
        ("Qwen3Moe", {}, {0, 1, 2, 3, 4, 5}),
        ("Qwen3Moe", {"decoder_sparse_step": 2}, {1, 3, 5}),
        ("Qwen2Moe", {"mlp_only_layers": [0, 3]}, {1, 2, 4, 5}),
        ("DeepseekV3", {"first_k_dense_replace": 2, "moe_layer_freq": 2}, {2, 4}),
        ("DeepseekV3", {"first_k_dense_replace": 3}, {3, 4, 5}),
        ("Mixtral", {}, {0, 1, 2, 3, 4, 5}),
    ],
)
def test_the_layers_with_experts_are_those_that_the_file_says(
    name: str, changes: dict[str, Any], layers: set[int]
) -> None:
    mixture = read(name, **changes).mixture
    assert mixture is not None
    assert mixture.layers == layers


def test_each_family_chooses_in_its_own_way() -> None:
    qwen2, qwen3, mixtral = (read(n).mixture for n in ("Qwen2Moe", "Qwen3Moe", "Mixtral"))
    v2, v3 = read("DeepseekV2", **V2, topk_method="group_limited_greedy").mixture, read("DeepseekV3").mixture
    assert qwen2 and qwen3 and mixtral and v2 and v3
    assert (qwen2.renormalize, qwen2.shared_size, qwen2.shared_gate) == (False, 48, True)
    assert (qwen3.renormalize, qwen3.shared_size, mixtral.renormalize) == (False, 0, True)
    assert (v2.scoring, v2.group_score, v2.num_groups, v2.correction_bias) == ("softmax", "max", 4, False)
    assert (v3.scoring, v3.group_score, v3.topk_groups, v3.correction_bias) == ("sigmoid", "top2", 2, True)
    assert (v3.scaling_factor, v3.shared_size, v3.float32_router) == (2.5, 32, True)
    greedy = read("DeepseekV2", **V2).mixture
    assert greedy is not None
    assert greedy.num_groups == 1


def test_a_deepseek_without_experts_is_dense() -> None:
    found = read("DeepseekV3", n_routed_experts=None)
    assert found.mixture is None
    assert found.latent is not None


@pytest.mark.parametrize(
    ("name", "changes", "error", "words"),
    [
        ("Qwen3Moe", {"num_experts_per_tok": None}, CheckpointError, "num_experts_per_tok"),
        ("Qwen3Moe", {"decoder_sparse_step": 0}, CheckpointError, "no layer would have experts"),
        ("Qwen3Moe", {"mlp_only_layers": "0"}, CheckpointError, "no list of layers"),
        ("DeepseekV3", {"moe_layer_freq": 0}, CheckpointError, "moe_layer_freq is 0"),
        ("DeepseekV3", {"topk_method": "greedy"}, UnsupportedError, "topk_method: noaux_tc"),
        ("DeepseekV3", {"scoring_func": "softmax"}, UnsupportedError, "no scoring function 'softmax'"),
        ("DeepseekV2", {"norm_topk_prob": True}, UnsupportedError, "do not agree"),
        ("DeepseekV3", {"qk_rope_head_dim": 7}, OpdockError, "odd"),
        ("DeepseekV3", {"kv_lora_rank": 0}, ConfigError, "kv_rank is 0"),
        ("Mixtral", {"sliding_window": 4096}, UnsupportedError, "sliding window"),
    ],
)
def test_what_cannot_be_is_refused_when_the_file_is_read(
    name: str, changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        read(name, **changes)


@pytest.mark.parametrize(
    ("kind", "changes", "words", "layer"),
    [
        ("qwen3_moe", {"num_experts_per_tok": 9}, "9 of 8 experts", "model.layers.1.mlp"),
        ("deepseek_v3", {"n_group": 3}, "3 groups of equal size", "model.layers.1.mlp"),
        ("deepseek_v3", {"topk_group": 5}, "5 of 4 groups", "model.layers.1.mlp"),
        ("mixtral", {"num_experts_per_tok": 0}, "0 of 6 experts", "model.layers.0.mlp"),
    ],
)
def test_numbers_that_do_not_go_together_are_refused_at_loading_with_the_layers_name(
    kind: str,
    changes: dict[str, Any],
    words: str,
    layer: str,
    config: Any,
    mixtures: Callable[[str], tuple[Path, Any]],
    load: Callable[..., Any],
    tmp_path: Path,
) -> None:
    folder, _ = mixtures(kind)
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    raw = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**raw, **changes}))
    with pytest.raises(ConfigError, match=words) as caught:
        load(tmp_path)
    assert layer in str(caught.value)
