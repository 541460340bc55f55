"""Attention, its backends, and the caches of keys and values."""

from opdock.nn.attention.attention import Attention
from opdock.nn.attention.backend import AttentionBackend, AttentionSelectorConfig, MultipleOf
from opdock.nn.attention.forward_context import ForwardContext, get_forward_context, set_forward_context
from opdock.nn.attention.impl import AttentionImpl, AttentionSpec
from opdock.nn.attention.kv_cache import KVCache, LayerCache
from opdock.nn.attention.metadata import AttentionMetadata, slots_of
from opdock.nn.attention.paged_cache import (
    BlockAllocator,
    PagedKVCache,
    attention_layers,
    copy_blocks,
    swap_blocks,
)
from opdock.nn.attention.registry import register_backend, unregister_backend
from opdock.nn.attention.scales import calculate_kv_scales
from opdock.nn.attention.selector import attention_backend, get_attn_backend

__all__ = [
    "Attention",
    "AttentionBackend",
    "AttentionImpl",
    "AttentionMetadata",
    "AttentionSelectorConfig",
    "AttentionSpec",
    "BlockAllocator",
    "ForwardContext",
    "KVCache",
    "LayerCache",
    "MultipleOf",
    "PagedKVCache",
    "attention_backend",
    "attention_layers",
    "calculate_kv_scales",
    "copy_blocks",
    "get_attn_backend",
    "get_forward_context",
    "register_backend",
    "set_forward_context",
    "slots_of",
    "swap_blocks",
    "unregister_backend",
]
