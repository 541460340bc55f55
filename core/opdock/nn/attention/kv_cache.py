"""Keys and values of the positions seen so far, in tensors allocated once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from opdock.errors import UnsupportedError


class KVCache:
    """The keys and values of all layers for a batch of sequences of one length.

    ``length`` positions are filled. A step writes its positions behind them, layer by layer, and ``advance``
    counts them once all layers are done. Nothing is moved or copied when the cache grows.

    Args:
        num_layers: number of layers.
        num_kv_heads: key and value heads of each layer.
        max_len: positions that fit.
        head_size: length of a head.
        batch: number of sequences, all of one length.
        dtype, device: of the tensors; None takes torch's default.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_kv_heads: int,
        max_len: int,
        head_size: int,
        batch: int = 1,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        """Allocate, uninitialised."""
        # One more than fits: a view of the whole is dense, and compiled code would be made anew for the last position.
        shape = (batch, num_kv_heads, max_len + 1, head_size)
        self.batch, self.max_len, self.length = batch, max_len, 0
        # Memory of its own for each: compiled code that writes views of one tensor writes the whole of it anew.
        self.layers: Sequence[LayerCache] = tuple(
            LayerCache(self, *(torch.empty(shape, dtype=dtype, device=device) for _ in range(2)))
            for _ in range(num_layers)
        )

    def advance(self, count: int) -> None:
        """Count ``count`` more positions as filled."""
        self.length += count

    def require_room(self, count: int) -> None:
        """Raise UnsupportedError unless ``count`` more positions fit."""
        if self.length + count > self.max_len:
            raise UnsupportedError(
                f"The cache holds {self.max_len} positions.",
                why=f"{self.length} are filled, and {count} more do not fit.",
                remedy=f"allocate it with max_len={self.length + count} or more.",
            )


class LayerCache:
    """One layer's part of a KVCache."""

    __slots__ = ("_cache", "_keys", "_values")

    def __init__(self, cache: KVCache, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Keep the tensors, (batch, num_kv_heads, max_len, head_size)."""
        self._cache, self._keys, self._values = cache, keys, values

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return self._cache.batch

    @property
    def length(self) -> int:
        """Positions filled before this step."""
        return self._cache.length

    def append(self, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write this step's keys and values, and return all of them up to and including this step.

        Args:
            key: (batch, num_kv_heads, new positions, head_size).
            value: likewise.

        Returns: views, (batch, num_kv_heads, all positions, head_size).
        """
        start, count = self._cache.length, key.shape[2]
        self._keys.narrow(2, start, count).copy_(key)
        self._values.narrow(2, start, count).copy_(value)
        return self._keys.narrow(2, 0, start + count), self._values.narrow(2, 0, start + count)
