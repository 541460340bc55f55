"""The IR op that rotates queries and keys and writes the keys, with the values, to a paged cache."""

from __future__ import annotations

from contextvars import Context
from typing import Any

import torch
from torch import Tensor

from opdock import ir
from opdock.errors import OpdockError
from opdock.ir.plan import is_yes


class CacheShapeError(OpdockError, ValueError):
    """Keys, values, slots and caches do not fit together."""


def _definition(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    head_size: int,
    cos_sin_cache: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    is_neox: bool = True,  # noqa: FBT001, FBT002 - as in rotary_embedding
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rotate query and key as ``rotary_embedding`` does; write the rotated keys, and the values, to their slots.

    Rounding points: those of ``rotary_embedding``; the cache gets what it returned, so that the two ops one after
    the other give the same bits. A cache of another dtype gets it rounded once more; an 8-bit cache gets it, in
    float32, over its scale and limited to what the dtype can hold.

    Shapes: positions and slot_mapping (num_tokens,); query and key as for ``rotary_embedding``, key with
        kv_heads * head_size columns in all; value (num_tokens, kv_heads, head_size); the caches (num_blocks,
        block_size, kv_heads, head_size); k_scale and v_scale one number. Returns query, key and the caches.
    Dtypes: as for ``rotary_embedding``; slot_mapping int64 or int32; caches any float; scales float32.
    Args: slot_mapping, block * block_size + offset for each token, each slot once; one below 0, or behind the cache,
        is padding: that token's key and value are written nowhere. head_size, is_neox as for ``rotary_embedding``.
    Mutates: nothing; maybe_inplace may reuse query, key and the caches.
    Batch: invariant; each element on its own.
    Raises: CacheShapeError, and what ``rotary_embedding`` raises.
    """
    whole = key_cache.dim() == 4 and value_cache.shape == key_cache.shape and key_cache.shape[3] == head_size
    rows = (*slot_mapping.shape, *key_cache.shape[2:])
    if not whole or value.shape != rows or key.shape[1:].numel() != value.shape[1:].numel():
        shapes = [tuple(t.shape) for t in (key, value, slot_mapping, key_cache, value_cache)]
        raise CacheShapeError(
            "rotary_and_cache: key {}, value {}, slots {} and caches {} and {} do not fit.".format(*shapes),
            remedy="one slot for each row, and caches (num_blocks, block_size, kv_heads, head_size).",
        )
    query, key = ir.native.rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox)
    count = key_cache.shape[0] * key_cache.shape[1]
    kept = (slot_mapping >= 0) & (slot_mapping < count)
    slots = torch.where(kept, slot_mapping, count).long()  # padding goes to a row behind the cache
    new_keys = _with_rows(key_cache, key.view(value.shape), slots, k_scale)
    return query, key, new_keys, _with_rows(value_cache, value, slots, v_scale)


def _with_rows(cache: Tensor, rows: Tensor, slots: Tensor, scale: Tensor) -> Tensor:
    """Return the cache with rows (tokens, heads, size) in these slots, the last of which is behind it."""
    if cache.dtype.itemsize == 1:
        limit = torch.finfo(cache.dtype).max
        rows = (rows.float() / scale).clamp(-limit, limit)
    rows = rows.to(cache.dtype)
    count = cache.shape[0] * cache.shape[1]
    raw = cache.view(torch.uint8) if cache.dtype.itemsize == 1 else cache
    longer = raw.new_empty(count + 1, *cache.shape[2:])
    longer[:count] = raw.reshape(count, *cache.shape[2:])
    longer[slots] = rows.view(torch.uint8) if cache.dtype.itemsize == 1 else rows
    return longer[:count].clone().view(cache.shape).view(cache.dtype)


def _inputs(
    num_tokens: int = 8,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    head_size: int | None = None,
    is_neox: bool = True,  # noqa: FBT001, FBT002
) -> tuple[Any, ...]:
    made = ir.ops.rotary_embedding.generate_inputs(
        num_tokens=num_tokens, hidden_size=hidden_size, dtype=dtype, device=device, head_size=head_size, is_neox=is_neox
    )
    positions, query, key, size, table, _ = made
    heads, blocks, block_size = key.shape[1] // size, num_tokens // 16 + 2, 16
    value = torch.randn(num_tokens, heads, size, dtype=dtype, device=device)
    caches = [torch.randn(blocks, block_size, heads, size, dtype=dtype, device=device) for _ in range(2)]
    slots = torch.randperm(blocks * block_size, device=device)[:num_tokens]
    slots[num_tokens // 2 + 1 :: 5] = -1
    scales = [torch.ones((), dtype=torch.float32, device=device) for _ in range(2)]
    return (positions, query, key, value, *caches, slots, size, table, *scales, is_neox)


def _register() -> Any:
    register: Any = ir.register_op(
        name="rotary_and_cache",
        activations=["query", "key", "key_cache", "value_cache"],
        allow_inplace=True,
        batch_invariant=True,
    )
    made = register(_definition)
    made.register_input_generator(_inputs)
    return made


# In a context of its own: whoever's hook imports this first neither owns the op nor takes it back.
rotary_and_cache = Context().run(_register)


def run_in_place(*arguments: Any) -> bool:
    """Run the provider that comes first for these arguments, if it is a kernel that writes in place.

    Args:
        arguments: of ``rotary_and_cache``; query, key and the caches are mutated where True is returned.

    Returns: False, and nothing is mutated, where the native definition would run: it copies the caches.
    """
    for impl in rotary_and_cache.op.current().impls:
        if impl.is_native:
            break
        if impl.inplace and (impl.predicate is None or is_yes(impl.predicate(*arguments))):
            impl.impl_fn(*arguments)
            return True
    return False
