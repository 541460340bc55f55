"""Attention by the formula, in jax.numpy, with every feature: XLA compiles it once for each set of shapes.

How many positions are filled is an array and no shape, so that a growing cache needs no new program.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.jit, static_argnames=("scale", "window", "soft_cap"))
def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    first: jax.Array,
    length: jax.Array,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    slopes: jax.Array | None = None,
    sinks: jax.Array | None = None,
) -> jax.Array:
    """Return the attention of new tokens over their request's positions, (requests, new, heads, head_size).

    Scores and sums are in float32 at least.

    Args:
        query: (requests, new, heads, head_size); token i of a request is at position first + i.
        key: (requests, kv_heads, positions, head_size); positions from ``length`` on do not matter.
        value: likewise.
        first: (requests,) int32.
        length: (requests,) int32.
        scale: multiplies the scores.
        window: positions that a token sees, itself included; None: all before it.
        soft_cap: scores become cap * tanh(score / cap); None: they stay.
        slopes: (heads,) float32; slope * (key position - query position) is added. None: nothing.
        sinks: (heads,); a logit of each head that takes part in the softmax and has no value. None: none.
    """
    requests, new, heads, head_size = query.shape
    kv_heads, positions = key.shape[1:3]
    wide = jnp.promote_types(query.dtype, jnp.float32)
    grouped = query.reshape(requests, new, kv_heads, heads // kv_heads, head_size)
    highest = jax.lax.Precision.HIGHEST if query.dtype == jnp.float32 else None
    column = jnp.arange(positions)
    filled = (column < length[:, None])[:, None, :, None]
    k, v = (jnp.where(filled, x, jnp.zeros_like(x)) for x in (key, value))
    scores = jnp.einsum("rnkgd,rkpd->rkgnp", grouped, k, preferred_element_type=wide, precision=highest) * scale
    if soft_cap is not None:
        scores = soft_cap * jnp.tanh(scores / soft_cap)
    row = first[:, None] + jnp.arange(new)
    behind = row[:, :, None] - column
    if slopes is not None:
        per_head = slopes.astype(wide).reshape(kv_heads, -1, 1, 1)
        scores = scores - per_head * behind[:, None, None].astype(wide)
    seen = behind >= 0
    if window is not None:
        seen &= behind < window
    scores = jnp.where(seen[:, None, None], scores, -jnp.inf)
    top = jnp.max(scores, axis=-1, keepdims=True)
    if sinks is not None:
        sink = sinks.astype(wide).reshape(1, kv_heads, -1, 1, 1)
        top = jnp.maximum(top, sink)
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    weights = jnp.exp(scores - top)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    if sinks is not None:
        total = total + jnp.exp(sink - top)
    weights = weights / jnp.where(total == 0.0, 1.0, total)
    out = jnp.einsum("rkgnp,rkpd->rnkgd", weights, v.astype(wide), precision=highest)
    return out.reshape(query.shape).astype(query.dtype)


@functools.partial(jax.jit, donate_argnums=0)
def write(cache: jax.Array, new: jax.Array, slots: jax.Array) -> jax.Array:
    """Return a cache (blocks, block_size, kv_heads, head_size) with rows written to slots; below 0: nowhere.

    The cache that is given is used up: its memory becomes the result's.
    """
    rows = cache.reshape(-1, *cache.shape[2:])
    places = jnp.where(slots < 0, rows.shape[0], slots)
    return rows.at[places].set(new.astype(cache.dtype), mode="drop").reshape(cache.shape)


@functools.partial(jax.jit, static_argnames=("most", "scale", "window", "soft_cap"))
def paged(
    query: jax.Array,
    key_cache: jax.Array,
    value_cache: jax.Array,
    starts: jax.Array,
    lengths: jax.Array,
    table: jax.Array,
    *,
    most: int,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    slopes: jax.Array | None = None,
    sinks: jax.Array | None = None,
) -> jax.Array:
    """Return the attention of a step's tokens over a paged cache, (tokens, heads, head_size); rows of none are zeros.

    Args:
        query: (tokens, heads, head_size).
        key_cache: (blocks, block_size, kv_heads, head_size), the step's keys written.
        value_cache: likewise.
        starts: (requests + 1,) int32, the first row of each request, and the row behind the last.
        lengths: (requests,) int32, positions of each with the step's.
        table: (requests, columns) int32.
        most: at least the most new tokens of a request; the program holds scores for as many of each.
        scale: see ``attend``.
        window: likewise.
        soft_cap: likewise.
        slopes: likewise.
        sinks: likewise.
    """
    tokens = query.shape[0]
    new = starts[1:] - starts[:-1]
    inner = starts[:-1, None] + jnp.arange(most)
    padded = query[jnp.clip(inner, 0, tokens - 1)]
    pages = jnp.clip(table, 0, key_cache.shape[0] - 1)
    k, v = (
        jnp.swapaxes(cache[pages].reshape(len(table), -1, *cache.shape[2:]), 1, 2) for cache in (key_cache, value_cache)
    )
    out = attend(
        padded,
        k,
        v,
        lengths - new,
        lengths,
        scale=scale,
        window=window,
        soft_cap=soft_cap,
        slopes=slopes,
        sinks=sinks,
    )
    request, there = rows_of(starts, lengths, tokens)
    found = out[request, jnp.clip(jnp.arange(tokens) - starts[request], 0, most - 1)]
    return jnp.where(there[:, None, None], found, jnp.zeros_like(found))


def rows_of(starts: jax.Array, lengths: jax.Array, tokens: int) -> tuple[jax.Array, jax.Array]:
    """Return the request of each row, and whether it has one that is there, both (tokens,)."""
    row = jnp.arange(tokens)
    request = jnp.clip(jnp.searchsorted(starts, row, side="right") - 1, 0, len(lengths) - 1)
    return request, (row < starts[-1]) & (lengths[request] > 0)
