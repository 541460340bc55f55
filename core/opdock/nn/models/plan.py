"""The tensors of a layer in a Hugging Face checkpoint, and where they go."""

from __future__ import annotations

from opdock.nn.models.checkpoint import Target
from opdock.nn.models.config import ModelConfig
from opdock.nn.models.facts import LatentConfig, MixtureConfig


def attention_plan(config: ModelConfig, at: str) -> dict[str, Target]:
    """Return the tensors of an attention whose names begin with ``at``: name to target."""
    if config.latent is not None:
        return _latent_plan(config, config.latent, at)
    hidden, dim = config.hidden_size, config.head_dim
    q, kv = config.num_heads * dim, config.num_kv_heads * dim
    plan = {
        **_linear(f"{at}q_proj", f"{at}qkv_proj", q, hidden, shard="q", bias=config.qkv_bias),
        **_linear(f"{at}k_proj", f"{at}qkv_proj", kv, hidden, shard="k", bias=config.qkv_bias),
        **_linear(f"{at}v_proj", f"{at}qkv_proj", kv, hidden, shard="v", bias=config.qkv_bias),
        **_linear(f"{at}o_proj", f"{at}o_proj", hidden, q, bias=config.o_bias),
    }
    if config.qk_norm:
        plan |= {f"{at}{name}.weight": Target(f"{at}{name}.weight", (dim,)) for name in ("q_norm", "k_norm")}
    return plan


def _latent_plan(config: ModelConfig, latent: LatentConfig, at: str) -> dict[str, Target]:
    hidden, heads = config.hidden_size, config.num_heads
    q = heads * (latent.nope_dim + latent.rope_dim)
    rows = latent.kv_rank + latent.rope_dim
    parts = [
        ("kv_a_proj_with_mqa", rows, hidden, latent.bias),
        ("kv_b_proj", heads * (latent.nope_dim + latent.value_dim), latent.kv_rank, False),
        ("o_proj", hidden, heads * latent.value_dim, latent.bias),
    ]
    norms = {"kv_a_layernorm": latent.kv_rank}
    if latent.q_rank is None:
        parts.append(("q_proj", q, hidden, False))
    else:
        parts += [("q_a_proj", latent.q_rank, hidden, latent.bias), ("q_b_proj", q, latent.q_rank, False)]
        norms["q_a_layernorm"] = latent.q_rank
    plan: dict[str, Target] = {}
    for name, outputs, inputs, bias in parts:
        plan |= _linear(f"{at}{name}", f"{at}{name}", outputs, inputs, bias=bias)
    return plan | {f"{at}{name}.weight": Target(f"{at}{name}.weight", (size,)) for name, size in norms.items()}


def mlp_plan(config: ModelConfig, index: int) -> dict[str, Target]:
    """Return the tensors of the MLP of layer ``index``, or of its experts: name to target."""
    at = f"model.layers.{index}.mlp."
    mixture = config.mixture
    if mixture is None or index not in mixture.layers:
        return _gated(at, at, config.intermediate_size, config)
    return _mixture_plan(config, mixture, f"model.layers.{index}.{mixture.block}.", at)


def _mixture_plan(config: ModelConfig, mixture: MixtureConfig, named: str, at: str) -> dict[str, Target]:
    hidden, inner = config.hidden_size, mixture.intermediate_size
    gate, up, down, shared = mixture.names
    plan = _linear(f"{named}gate", f"{at}gate", mixture.num_experts, hidden)
    if mixture.correction_bias:
        plan[f"{named}gate.e_score_correction_bias"] = Target(f"{at}e_score_correction_bias", (mixture.num_experts,))
    for expert in range(mixture.num_experts):
        of = f"{named}experts.{expert}."
        plan[f"{of}{gate}.weight"] = Target(f"{at}w13_weight", (inner, hidden), ("w1", expert))
        plan[f"{of}{up}.weight"] = Target(f"{at}w13_weight", (inner, hidden), ("w3", expert))
        plan[f"{of}{down}.weight"] = Target(f"{at}w2_weight", (hidden, inner), ("w2", expert))
    if mixture.shared_size:
        plan |= _gated(f"{named}{shared}.", f"{at}shared_experts.", mixture.shared_size, config)
    if mixture.shared_gate:
        plan |= _linear(f"{named}shared_expert_gate", f"{at}shared_expert_gate", 1, hidden)
    return plan


def _gated(named: str, at: str, inner: int, config: ModelConfig) -> dict[str, Target]:
    """Return the tensors of a gated MLP."""
    hidden, bias = config.hidden_size, config.mlp_bias
    return {
        **_linear(f"{named}gate_proj", f"{at}gate_up_proj", inner, hidden, shard=0, bias=bias),
        **_linear(f"{named}up_proj", f"{at}gate_up_proj", inner, hidden, shard=1, bias=bias),
        **_linear(f"{named}down_proj", f"{at}down_proj", hidden, inner, bias=bias),
    }


def _linear(
    name: str, param: str, outputs: int, inputs: int, *, shard: str | int | None = None, bias: bool = False
) -> dict[str, Target]:
    plan = {f"{name}.weight": Target(f"{param}.weight", (outputs, inputs), shard)}
    if bias:
        plan[f"{name}.bias"] = Target(f"{param}.bias", (outputs,), shard)
    return plan
