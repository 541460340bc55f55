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
        build: positional arguments of the constructor.
        calls: each makes the inputs of one call, given the layer and a function that moves a float64 tensor to the
            layer's dtype and device.
    """

    home: str
    cls: str
    build: tuple[Any, ...]
    calls: tuple[Callable[[Any, Callable[[torch.Tensor], torch.Tensor]], tuple[Any, ...]], ...]


def _rows(width: int, seed: int = 0, rows: int = _TOKENS) -> torch.Tensor:
    return torch.randn(rows, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _linear(cls: str, build: tuple[Any, ...]) -> LayerSample:
    return LayerSample("opdock.nn.layers", cls, build, (lambda layer, to: (to(_rows(_HIDDEN)),),))


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


_LAYERS = "opdock.nn.layers"
LAYERS: dict[str, LayerSample] = {
    "rms_norm": LayerSample(_LAYERS, "RMSNorm", (_HIDDEN,), (_norm, _norm_and_residual)),
    "gemma_rms_norm": LayerSample(_LAYERS, "GemmaRMSNorm", (_HIDDEN,), (_norm, _norm_and_residual)),
    "silu_and_mul": LayerSample(_LAYERS, "SiluAndMul", (), (lambda layer, to: (to(_rows(2 * _HIDDEN)),),)),
    "gelu_and_mul": LayerSample(_LAYERS, "GeluAndMul", (), (lambda layer, to: (to(_rows(2 * _HIDDEN)),),)),
    "rotary_embedding": LayerSample(
        _LAYERS,
        "RotaryEmbedding",
        (_HEAD, _HEAD, 64, 10000.0, True, torch.float32),
        (lambda layer, to: (_positions(to), *_heads(to)[:2]),),
    ),
    "replicated_linear": _linear("ReplicatedLinear", (_HIDDEN, 48)),
    "column_parallel_linear": _linear("ColumnParallelLinear", (_HIDDEN, 48)),
    "row_parallel_linear": _linear("RowParallelLinear", (_HIDDEN, 48)),
    "merged_column_parallel_linear": _linear("MergedColumnParallelLinear", (_HIDDEN, [32, 32])),
    "qkv_parallel_linear": _linear("QKVParallelLinear", (_HIDDEN, _HEAD, _HEADS, _KV_HEADS)),
    "vocab_parallel_embedding": LayerSample(_LAYERS, "VocabParallelEmbedding", (31, _HIDDEN), (_ids,)),
    "attention": LayerSample(
        "opdock.nn.attention",
        "Attention",
        (_HEADS, _HEAD, _HEAD**-0.5, _KV_HEADS),
        (lambda layer, to: _heads(to),),
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
