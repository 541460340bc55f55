"""A decoder's steps over a paged cache, as functions of arrays, for compiling ahead of time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import torch

import opdock
from opdock.nn.attention import AttentionMetadata, set_forward_context
from opdock.nn.models.config import ModelConfig
from opdock.nn.models.decoder import CausalDecoder
from opdock_tpu import xla

BLOCK = 16


@dataclass(frozen=True)
class Step:
    """The sizes of a step: ``requests`` with ``new`` tokens each, and blocks for ``positions`` of each."""

    requests: int
    new: int
    positions: int


def config(*, layers: int, hidden: int, heads: int, kv_heads: int) -> ModelConfig:
    """Return the configuration of a Llama with heads of 128."""
    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=32000,
        hidden_size=hidden,
        intermediate_size=hidden * 7 // 2,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=128,
        rms_norm_eps=1e-5,
        max_position=4096,
    )


def decoder_step(settings: ModelConfig, step: Step, dtype: str) -> tuple[Callable[..., Any], list[Any]]:
    """Return a function (weights, caches, numbers) -> (logits, caches), and the shapes of its arguments.

    The model is opdock's own, run through torchax; ``opdock.set_current_config`` must be in force.
    """
    from torchax import interop

    torch_dtype, jax_dtype = getattr(torch, dtype), jnp.dtype(dtype)
    opdock.context.get_current_config()
    torch.set_default_dtype(torch_dtype)
    try:
        with torch.device("meta"):
            model = CausalDecoder(settings)
    finally:
        torch.set_default_dtype(torch.float32)
    layers = {layer.self_attn.attn.prefix: layer.self_attn.attn for layer in model.model.layers}
    with xla.enabled():  # the one thing that a layer asks of its own tensors: where it is
        for layer in layers.values():
            layer.k_scale, layer.v_scale = torch.ones((), device="jax"), torch.ones((), device="jax")
    columns = -(-step.positions // BLOCK)
    tokens = step.requests * step.new
    weights = {name: _shape(value) for name, value in model.state_dict(keep_vars=True).items()}
    weights |= {name: _shape(value) for name, value in model.named_buffers()}
    shape = (step.requests * columns, BLOCK, settings.num_kv_heads, settings.head_dim)
    caches = {name: (jax.ShapeDtypeStruct(shape, jax_dtype),) * 2 for name in layers}
    numbers = {
        name: jax.ShapeDtypeStruct(size, jnp.int32)
        for name, size in {
            "ids": (tokens,),
            "positions": (tokens,),
            "starts": (step.requests + 1,),
            "lengths": (step.requests,),
            "table": (step.requests, columns),
            "slots": (tokens,),
        }.items()
    }

    def run(given: Any, cached: Any, told: Any) -> Any:
        weights, held, n = interop.torch_view((given, cached, told))
        with xla.without_gradients(), xla.left_to_xla():
            for name, layer in layers.items():
                layer.bind_cache(*held[name], torch_dtype)
            metadata = AttentionMetadata(
                query_start_loc=n["starts"],
                seq_lens=n["lengths"],
                block_table=n["table"],
                slot_mapping=n["slots"],
                num_tokens=tokens,
                max_query_len=step.new,
                max_seq_len=step.positions,
            )
            with set_forward_context(metadata, layers):
                hidden = torch.func.functional_call(model, weights, (n["ids"], n["positions"]))
                last = hidden[n["starts"][1:] - 1]
                logits = torch.nn.functional.linear(last, weights["lm_head.weight"])
            after = {name: (layer.key_cache, layer.value_cache) for name, layer in layers.items()}
            for layer in layers.values():
                layer.unbind_cache()
        return interop.jax_view((logits, after))

    return run, [weights, caches, numbers]


def _shape(value: torch.Tensor) -> Any:
    from torchax.ops import mappings

    return jax.ShapeDtypeStruct(tuple(value.shape), mappings.t2j_dtype(value.dtype))
