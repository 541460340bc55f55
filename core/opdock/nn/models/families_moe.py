"""How configurations of mixtures of experts are read: Mixtral, Qwen2-MoE and Qwen3-MoE, DeepSeek-V2 and -V3."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from opdock.errors import CheckpointError, UnsupportedError
from opdock.nn.models.config import Fields
from opdock.nn.models.facts import LatentConfig, MixtureConfig

MIXTRAL, QWEN2, QWEN3 = "MixtralForCausalLM", "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"
DEEPSEEK2, DEEPSEEK3 = "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"
DEEPSEEK = (DEEPSEEK2, DEEPSEEK3)
MIXTURES = (MIXTRAL, QWEN2, QWEN3, *DEEPSEEK)
_QWEN_NAMES = ("gate_proj", "up_proj", "down_proj", "shared_expert")


def mixture_from_hf(raw: Mapping[str, Any], source: str, *, name: str) -> MixtureConfig | None:
    """Return the mixture of a config.json; None for an architecture without one."""
    if name not in MIXTURES:
        return None
    f = Fields(raw, source)
    layers = f.size("num_hidden_layers")
    if name == MIXTRAL:
        return MixtureConfig(
            num_experts=f.size("num_local_experts", 8),
            top_k=f.size("num_experts_per_tok", 2),
            intermediate_size=f.size("intermediate_size"),
            layers=frozenset(range(layers)),
            names=("w1", "w3", "w2", ""),
            block="block_sparse_moe",
        )
    if name in DEEPSEEK:
        return _deepseek(raw, f, layers, name)
    dense, step = _indices(raw, "mlp_only_layers", source), f.size("decoder_sparse_step", 1)
    if step < 1:
        raise CheckpointError(f"decoder_sparse_step is {step}: no layer would have experts.", who=source)
    return MixtureConfig(
        num_experts=f.size("num_experts" if "num_experts" in raw else "num_local_experts"),
        top_k=f.size("num_experts_per_tok"),
        intermediate_size=f.size("moe_intermediate_size"),
        layers=frozenset(i for i in range(layers) if i not in dense and (i + 1) % step == 0),
        renormalize=f.flag("norm_topk_prob"),
        shared_size=f.size("shared_expert_intermediate_size") if name == QWEN2 else 0,
        shared_gate=name == QWEN2,
        names=_QWEN_NAMES,
    )


def _deepseek(raw: Mapping[str, Any], f: Fields, layers: int, name: str) -> MixtureConfig | None:
    """Read DeepSeek's: the first layers are dense, the others have experts, one in ``moe_layer_freq`` of them."""
    third = name == DEEPSEEK3
    if raw.get("n_routed_experts") is None:
        return None
    inner, first, step = f.size("moe_intermediate_size"), f.size("first_k_dense_replace", 0), _step(f)
    method = str(raw.get("topk_method") or ("noaux_tc" if third else "greedy"))
    known = ("noaux_tc",) if third else ("greedy", "group_limited_greedy")
    if method not in known:
        raise UnsupportedError(
            f"{name} has no choice of experts {method!r}.", who=f.source, remedy=f"topk_method: {' or '.join(known)}."
        )
    scoring = str(raw.get("scoring_func") or ("sigmoid" if third else "softmax"))
    if scoring != ("sigmoid" if third else "softmax"):
        raise UnsupportedError(f"{name} has no scoring function {scoring!r}.", who=f.source)
    renormalize = f.flag("norm_topk_prob")
    if renormalize and not third:
        raise UnsupportedError(
            "norm_topk_prob of a DeepSeek-V2 model is true, and its implementations do not agree on what that means.",
            who=f.source,
            remedy="use a checkpoint with norm_topk_prob: false.",
        )
    grouped = third or method == "group_limited_greedy"
    return MixtureConfig(
        num_experts=f.size("n_routed_experts"),
        top_k=f.size("num_experts_per_tok"),
        intermediate_size=inner,
        layers=frozenset(i for i in range(layers) if i >= first and i % step == 0),
        scoring=scoring,
        renormalize=renormalize,
        scaling_factor=f.number("routed_scaling_factor", 1.0),
        num_groups=f.size("n_group", 1) if grouped else 1,
        topk_groups=f.size("topk_group", 1) if grouped else 1,
        group_score="top2" if third else "max",
        correction_bias=third,
        float32_router=True,
        shared_size=inner * f.size("n_shared_experts", 0),
    )


def _step(f: Fields) -> int:
    step = f.size("moe_layer_freq", 1)
    if step < 1:
        raise CheckpointError(f"moe_layer_freq is {step}: no layer would have experts.", who=f.source)
    return step


def latent_from_hf(
    raw: Mapping[str, Any], source: str, scaling: Mapping[str, Any], *, name: str
) -> LatentConfig | None:
    """Return the latent attention of a config.json; None for an architecture without one."""
    if name not in DEEPSEEK:
        return None
    f = Fields(raw, source)
    return LatentConfig(
        kv_rank=f.size("kv_lora_rank"),
        nope_dim=f.size("qk_nope_head_dim"),
        rope_dim=f.size("qk_rope_head_dim"),
        value_dim=f.size("v_head_dim"),
        q_rank=None if raw.get("q_lora_rank") is None else f.size("q_lora_rank"),
        bias=f.flag("attention_bias"),
        neox=name == DEEPSEEK3 and raw.get("rope_interleave") is False,
        scale_factor=_scale_factor(scaling, source),
    )


def _scale_factor(scaling: Mapping[str, Any], source: str) -> float:
    """Return what a scaled rotation multiplies the scores by."""
    if scaling.get("rope_type", "default") == "default" or not scaling.get("mscale_all_dim"):
        return 1.0
    f = Fields(scaling, source)
    factor = f.number("factor")
    return (0.1 * f.number("mscale_all_dim") * math.log(factor) + 1.0) ** 2 if factor > 1 else 1.0


def _indices(raw: Mapping[str, Any], key: str, source: str) -> frozenset[int]:
    found = raw.get(key) or []
    if not isinstance(found, list) or not all(isinstance(i, int) for i in found):
        raise CheckpointError(f"{key!r} in the model's configuration is no list of layers: {found!r}.", who=source)
    return frozenset(found)
