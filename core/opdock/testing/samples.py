"""Layers and models that the kit builds: how, and what it calls them with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

_HIDDEN, _TOKENS, _HEADS, _KV_HEADS, _HEAD = 64, 9, 4, 2, 16


@dataclass(frozen=True)
class LayerSample:
    """How to build one op class, and calls of it.

    Args:
        home: module of the class.
        cls: its name.
        build: positional arguments of the constructor; a function is called for the argument when the layer is built.
        calls: each makes the inputs of one call, given the layer and a function that moves a float64 tensor to the
            layer's dtype and device.
        others: keyword arguments of further builds, which get the same calls; functions as in ``build``.
        placed: whether it must be built where it runs, in the dtype that it has there, because it chooses by these.
        donates: whether the in-tree class lets an in-place provider write what it is given.
    """

    home: str
    cls: str
    build: tuple[Any, ...]
    calls: tuple[Callable[[Any, Callable[[torch.Tensor], torch.Tensor]], tuple[Any, ...]], ...]
    others: tuple[dict[str, Any], ...] = ()
    donates: bool = False
    placed: bool = False


def _rows(width: int, seed: int = 0, rows: int = _TOKENS) -> torch.Tensor:
    return torch.randn(rows, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _linear(cls: str, build: tuple[Any, ...]) -> LayerSample:
    others = ({"bias": False}, {"skip_bias_add": True}, {"return_bias": False})
    return LayerSample("opdock.nn.layers", cls, build, _of_rows(_HIDDEN), others)


def _of_rows(width: int) -> tuple[Callable[..., tuple[Any, ...]], ...]:
    """Return calls with few and many rows, large values, three dimensions, and columns of a wider tensor."""
    return (
        lambda layer, to: (to(_rows(width)),),
        lambda layer, to: (to(_rows(width, rows=3)),),
        lambda layer, to: (to(_rows(width, rows=130)),),
        lambda layer, to: (to(30 * _rows(width)),),
        lambda layer, to: (to(_rows(width, rows=10).view(2, 5, width)),),
        lambda layer, to: (to(_rows(width + 16))[:, 16:],),
    )


def _joined_heads(layer: Any, to: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Any, ...]:
    """Return query, key and value as columns of one tensor, as a joint projection gives them."""
    sizes = (_HEADS * _HEAD, _KV_HEADS * _HEAD, _KV_HEADS * _HEAD)
    return tuple(to(_rows(sum(sizes), 5)).split(sizes, dim=-1))


def _with_past(past: int, new: int, batch: int = 2) -> Callable[..., tuple[Any, ...]]:
    """Return a call of several sequences whose cache holds ``past`` positions."""

    def make(layer: Any, to: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Any, ...]:
        from opdock.nn.attention import KVCache

        widths = (_HEADS * _HEAD, _KV_HEADS * _HEAD, _KV_HEADS * _HEAD)
        q, k, v = (to(_rows(width, seed, batch * new)) for seed, width in enumerate(widths))
        cache = KVCache(
            num_layers=1, num_kv_heads=_KV_HEADS, max_len=past + new, head_size=_HEAD, batch=batch, dtype=q.dtype,
            device=q.device,
        )  # fmt: skip
        if past:
            shape = (batch, _KV_HEADS, past, _HEAD)
            cache.layers[0].append(*(to(_rows(_HEAD, seed, batch * _KV_HEADS * past).view(shape)) for seed in (8, 9)))
            cache.advance(past)
        return q, k, v, cache.layers[0]

    return make


def _heads(to: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Any, ...]:
    q, kv = _rows(_HEADS * _HEAD), [_rows(_KV_HEADS * _HEAD, seed) for seed in (1, 2)]
    return (to(q), *(to(t) for t in kv))


def _positions(to: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    return torch.arange(3, 3 + _TOKENS).to(to(torch.zeros(1, dtype=torch.float64)).device)


def _norm(layer: Any, to: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Any, ...]:
    return (to(_rows(_HIDDEN)),)


def _norm_and_residual(layer: Any, to: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Any, ...]:
    return to(_rows(_HIDDEN)), to(_rows(_HIDDEN, 1))


def _ids(layer: Any, to: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Any, ...]:
    return (_positions(to),)


_EXPERTS, _INNER = 8, 32


def _routed(rows: int = _TOKENS, *, one: bool = False) -> Callable[..., tuple[Any, ...]]:
    """Return a call of experts with logits that are exact in any dtype and far apart; ``one``: all go to the same."""

    def make(layer: Any, to: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Any, ...]:
        token, expert = torch.arange(rows)[:, None], torch.arange(_EXPERTS)[None]
        order = expert.expand(rows, -1) if one else (3 * token + expert * (1 + 2 * (token // 2 % 4))) % _EXPERTS
        return to(_rows(_HIDDEN, 2, rows)), to(order.double() / 2 - 1)

    return make


def _rotary() -> Any:
    from opdock.nn.layers import RotaryEmbedding

    return RotaryEmbedding(_HEAD, _HEAD, 64, 10000.0, is_neox_style=False, dtype=torch.float32)


def _latent(q_rank: int | None = None) -> Callable[[], Any]:
    def make() -> Any:
        from opdock.nn.models.facts import LatentConfig

        return LatentConfig(24, 20, _HEAD, 12, q_rank=q_rank, scale_factor=1.3)

    return make


def _shared(outputs: int) -> Callable[[], Any]:
    def make() -> Any:
        from opdock.nn.layers import ReplicatedLinear

        return ReplicatedLinear(_HIDDEN, outputs, bias=False, return_bias=False)

    return make


def _latent_rows(past: int, new: int, batch: int = 1, *, cached: bool = True) -> Callable[..., tuple[Any, ...]]:
    """Return a call of latent attention, whose cache holds ``past`` positions of each sequence."""

    def make(layer: Any, to: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Any, ...]:
        from opdock.nn.layers.mla import LatentCache

        x = to(_rows(_HIDDEN, 3, batch * new))
        positions = torch.arange(past, past + new).repeat(batch).to(x.device)
        if not cached:
            return positions, x, None
        size = layer.latent.kv_rank + layer.latent.rope_dim
        cache = LatentCache(num_layers=1, max_len=past + new, size=size, batch=batch, dtype=x.dtype, device=x.device)
        if past:
            filled: Any = cache.layers[0]
            filled.append_rows(to(_rows(size, 4, batch * past)).view(batch, 1, past, size))
            cache.advance(past)
        return positions, x, cache.layers[0]

    return make


_LAYERS = "opdock.nn.layers"
LAYERS: dict[str, LayerSample] = {
    "rms_norm": LayerSample(_LAYERS, "RMSNorm", (_HIDDEN,), (_norm, _norm_and_residual), donates=True),
    "gemma_rms_norm": LayerSample(_LAYERS, "GemmaRMSNorm", (_HIDDEN,), (_norm, _norm_and_residual), donates=True),
    "silu_and_mul": LayerSample(_LAYERS, "SiluAndMul", (), _of_rows(2 * _HIDDEN)),
    "gelu_and_mul": LayerSample(_LAYERS, "GeluAndMul", (), _of_rows(2 * _HIDDEN), ({"approximate": "tanh"},)),
    "rotary_embedding": LayerSample(
        _LAYERS,
        "RotaryEmbedding",
        (_HEAD, _HEAD, 64, 10000.0, True, torch.float32),
        (lambda layer, to: (_positions(to), *_heads(to)[:2]),),
        donates=True,
    ),
    "replicated_linear": _linear("ReplicatedLinear", (_HIDDEN, 48)),
    "column_parallel_linear": _linear("ColumnParallelLinear", (_HIDDEN, 48)),
    "row_parallel_linear": _linear("RowParallelLinear", (_HIDDEN, _HIDDEN)),
    "merged_column_parallel_linear": _linear("MergedColumnParallelLinear", (_HIDDEN, [32, 32])),
    "qkv_parallel_linear": _linear("QKVParallelLinear", (_HIDDEN, _HEAD, _HEADS, _KV_HEADS)),
    "vocab_parallel_embedding": LayerSample(_LAYERS, "VocabParallelEmbedding", (31, _HIDDEN), (_ids,)),
    "attention": LayerSample(
        "opdock.nn.attention",
        "Attention",
        (_HEADS, _HEAD, 0.4, _KV_HEADS),  # not head_size ** -0.5, which torch takes by itself
        (lambda layer, to: _heads(to), _joined_heads, _with_past(0, 5), _with_past(1100, 1), _with_past(1100, 3)),
    ),
    "fused_moe": LayerSample(
        "opdock.nn.moe",
        "FusedMoE",
        (_EXPERTS, 2, _HIDDEN, _INNER),
        (_routed(), _routed(1), _routed(130), _routed(0), _routed(70, one=True)),
        (
            {"renormalize": False},
            {"scoring_func": "sigmoid", "routed_scaling_factor": 1.5, "correction_bias": True},
            {"num_expert_group": 4, "topk_group": 1},
            {"num_expert_group": 2, "topk_group": 1, "group_score": "top2", "scoring_func": "sigmoid"},
            {"activation": "gelu"},
            {"ep_size": 2, "ep_rank": 1},
            {"shared_experts": _shared(_HIDDEN), "shared_expert_gate": _shared(1)},
        ),
        placed=True,
    ),
    "multi_head_latent_attention": LayerSample(
        "opdock.nn.layers.mla",
        "MultiHeadLatentAttention",
        (_HIDDEN, _HEADS, _latent(), _rotary),
        (
            _latent_rows(0, 7, cached=False),
            _latent_rows(0, 7),
            _latent_rows(9, 1),
            _latent_rows(9, 1, batch=3),
            _latent_rows(9, 4, batch=2),
        ),
        ({"eps": 0.5},),
    ),
}
"""By op name. Op classes that are not here have no sample: a package with op classes of its own tests them itself."""

MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"qk_norm": True, "tie_word_embeddings": True},
    "qwen2": {"qkv_bias": True},
}
"""What each small decoder has besides ``model_config``'s numbers."""


def model_config(name: str) -> Any:
    """Return the configuration of a small random decoder."""
    from opdock.nn.models.config import ModelConfig

    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=97,
        hidden_size=_HIDDEN,
        intermediate_size=96,
        num_layers=2,
        num_heads=_HEADS,
        num_kv_heads=_KV_HEADS,
        head_dim=_HEAD,
        rms_norm_eps=1e-5,
        max_position=64,
        **MODELS[name],
    )
