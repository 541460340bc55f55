"""The known architectures and how their configurations are read: Llama (SmolLM2 too), Qwen2, Qwen3, mixtures."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from opdock.errors import CheckpointError, UnsupportedError
from opdock.nn.models.architectures import Architecture, architectures
from opdock.nn.models.config import Fields, ModelConfig, token_ids
from opdock.nn.models.families_moe import (
    DEEPSEEK,
    MIXTRAL,
    MIXTURES,
    QWEN2,
    QWEN3,
    latent_from_hf,
    mixture_from_hf,
)

_DECODER = "opdock.nn.models.decoder:CausalDecoder"


def config_from_hf(raw: Mapping[str, Any], source: str, *, name: str) -> ModelConfig:
    """Make a ModelConfig from the contents of a config.json."""
    f = Fields(raw, source)
    heads, hidden = f.size("num_attention_heads"), f.size("hidden_size")
    head_dim = _head_dim(f, hidden // max(heads, 1), name)
    theta, scaling = _rope_from_hf(raw, source)
    if raw.get("quantization_config"):
        raise UnsupportedError(
            "The checkpoint is quantised in a way that opdock does not read.",
            who=source,
            why=f"quantization_config: {raw['quantization_config']}",
            remedy="use the unquantised checkpoint, or a GGUF file of the model.",
        )
    mixture, latent = mixture_from_hf(raw, source, name=name), latent_from_hf(raw, source, scaling, name=name)
    windows = any("sliding" in str(kind) for kind in raw.get("layer_types") or ())
    if raw.get("use_sliding_window") or windows or (name == MIXTRAL and raw.get("sliding_window")):
        raise UnsupportedError(
            "The model attends to a sliding window, which opdock does not do yet.",
            who=source,
            remedy="use a model with full attention.",
        )
    bias = f.flag("attention_bias")
    dtype = raw.get("dtype", raw.get("torch_dtype"))
    return ModelConfig(
        architecture=name,
        vocab_size=f.size("vocab_size"),
        hidden_size=hidden,
        intermediate_size=f.size("intermediate_size"),
        num_layers=f.size("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=f.size("num_key_value_heads", heads),
        head_dim=head_dim,
        rms_norm_eps=f.number("rms_norm_eps", 1e-6),
        max_position=f.size("max_position_embeddings"),
        rope_theta=theta,
        rope_scaling=scaling,
        rotary_dim=int(head_dim * f.number("partial_rotary_factor", scaling.get("partial_rotary_factor", 1.0))),
        hidden_act=str(raw.get("hidden_act", "silu")),
        tie_word_embeddings=f.flag("tie_word_embeddings"),
        qkv_bias=_qkv_bias(raw, name),
        o_bias=bias and name in ("LlamaForCausalLM", "Qwen3ForCausalLM", QWEN3, *DEEPSEEK),
        mlp_bias=f.flag("mlp_bias") and name in ("LlamaForCausalLM", DEEPSEEK[0]),
        qk_norm=name in ("Qwen3ForCausalLM", QWEN3),
        dtype=dtype.removeprefix("torch.") if isinstance(dtype, str) and dtype != "auto" else None,
        bos_token_id=next(iter(token_ids(raw.get("bos_token_id"))), None),
        eos_token_ids=token_ids(raw.get("eos_token_id")),
        source=source,
        mixture=mixture,
        latent=latent,
    )


def _head_dim(f: Fields, usual: int, name: str) -> int:
    """Return the length of a head; in latent attention, of its rotated part."""
    if name in DEEPSEEK:
        return f.size("qk_rope_head_dim")
    return f.size("head_dim", 128 if name == "Qwen3ForCausalLM" else usual)


def _qkv_bias(raw: Mapping[str, Any], name: str) -> bool:
    if name == QWEN2:
        return bool(raw.get("qkv_bias", True))
    return name == "Qwen2ForCausalLM" or (bool(raw.get("attention_bias")) and name != MIXTRAL)


def _rope_from_hf(raw: Mapping[str, Any], source: str) -> tuple[float, dict[str, Any]]:
    """Return theta and the scaling, from ``rope_parameters`` or the older pair of fields."""
    new, old = raw.get("rope_parameters") or {}, raw.get("rope_scaling") or {}
    if not isinstance(new, Mapping) or not isinstance(old, Mapping):
        raise CheckpointError("The rotary parameters of the model's configuration are no mapping.", who=source)
    scaling = {**old, **new}
    theta = Fields({"rope_theta": scaling.pop("rope_theta", raw.get("rope_theta"))}, source)
    scaling.setdefault("rope_type", scaling.pop("type", "default"))
    if scaling["rope_type"] in ("llama3", "yarn"):
        scaling.setdefault("original_max_position_embeddings", raw.get("max_position_embeddings"))
    return theta.number("rope_theta", 10000.0), scaling


def config_from_gguf(metadata: Mapping[str, Any], tensors: frozenset[str], source: str, *, name: str) -> ModelConfig:
    """Make a ModelConfig from the metadata of a GGUF file and the names of its tensors."""
    arch = metadata["general.architecture"]
    f = Fields(metadata, source, f"{arch}.")
    if metadata.get(f"{arch}.expert_count"):
        raise UnsupportedError(
            "The model is a mixture of experts, which opdock does not load yet.",
            who=source,
            remedy="use a dense model.",
        )
    heads, hidden = f.size("attention.head_count"), f.size("embedding_length")
    head_dim = f.size("attention.key_length", hidden // max(heads, 1))
    tokens = metadata.get("tokenizer.ggml.tokens") or ()
    eos = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot")]
    kind = str(metadata.get(f"{arch}.rope.scaling.type", "none"))
    scaling: dict[str, Any] = {"rope_type": "default" if kind == "none" else kind}
    if kind == "yarn":
        raise UnsupportedError(
            "The model's rotary embedding is of type 'yarn', which opdock does not read from GGUF files.",
            who=source,
            remedy="use the model's Hugging Face checkpoint.",
        )
    if kind != "none":
        scaling["factor"] = f.number("rope.scaling.factor")
    if "rope_freqs.weight" in tensors:
        scaling = {"rope_type": "factors", "factors": metadata.get("rope_freqs.weight")}
    return ModelConfig(
        architecture=name,
        vocab_size=f.size("vocab_size", len(tokens)),
        hidden_size=hidden,
        intermediate_size=f.size("feed_forward_length"),
        num_layers=f.size("block_count"),
        num_heads=heads,
        num_kv_heads=f.size("attention.head_count_kv", heads),
        head_dim=head_dim,
        rms_norm_eps=f.number("attention.layer_norm_rms_epsilon"),
        max_position=f.size("context_length"),
        rope_theta=f.number("rope.freq_base", 10000.0),
        rope_scaling=scaling,
        rotary_dim=f.size("rope.dimension_count", head_dim),
        tie_word_embeddings="output.weight" not in tensors,
        qkv_bias="blk.0.attn_q.bias" in tensors,
        o_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_gate.bias" in tensors,
        qk_norm="blk.0.attn_q_norm.weight" in tensors,
        bos_token_id=metadata.get("tokenizer.ggml.bos_token_id"),
        eos_token_ids=tuple(i for i in eos if isinstance(i, int)),
        source=source,
    )


def _register(name: str, gguf: str, *, permuted_qk: bool = False) -> None:
    architectures.register(
        name,
        Architecture(
            name,
            _DECODER,
            from_hf=partial(config_from_hf, name=name),
            gguf=gguf,
            from_gguf=partial(config_from_gguf, name=name),
            permuted_qk=permuted_qk,
        ),
    )


_register("LlamaForCausalLM", "llama", permuted_qk=True)
_register("Qwen2ForCausalLM", "qwen2")
_register("Qwen3ForCausalLM", "qwen3")
for _name in MIXTURES:
    architectures.register(_name, Architecture(_name, _DECODER, from_hf=partial(config_from_hf, name=_name)))
