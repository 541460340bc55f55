"""Attention and the cache of keys and values."""

from opdock.nn.attention.attention import Attention
from opdock.nn.attention.kv_cache import KVCache, LayerCache

__all__ = ["Attention", "KVCache", "LayerCache"]
