"""The layers that models are written with; a platform may replace each of them."""

from opdock.nn.layers.activation import GeluAndMul, SiluAndMul
from opdock.nn.layers.layernorm import GemmaRMSNorm, RMSNorm
from opdock.nn.layers.linear import (
    ColumnParallelLinear,
    LinearBase,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from opdock.nn.layers.logits import LogitsProcessor
from opdock.nn.layers.rotary import (
    FrequencyFactorRotaryEmbedding,
    LinearScalingRotaryEmbedding,
    Llama3RotaryEmbedding,
    RotaryEmbedding,
    get_rope,
)
from opdock.nn.layers.vocab import ParallelLMHead, VocabParallelEmbedding

__all__ = [
    "ColumnParallelLinear",
    "FrequencyFactorRotaryEmbedding",
    "GeluAndMul",
    "GemmaRMSNorm",
    "LinearBase",
    "LinearScalingRotaryEmbedding",
    "Llama3RotaryEmbedding",
    "LogitsProcessor",
    "MergedColumnParallelLinear",
    "ParallelLMHead",
    "QKVParallelLinear",
    "RMSNorm",
    "ReplicatedLinear",
    "RotaryEmbedding",
    "RowParallelLinear",
    "SiluAndMul",
    "VocabParallelEmbedding",
    "get_rope",
]
