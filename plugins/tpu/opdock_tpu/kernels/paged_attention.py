"""Attention of decoded tokens over a paged cache, in Pallas: each cached row is read once, where it lies.

The blocks of a request are fetched one by one, through its row of the block table, while the block before is being
computed. All heads of a block are one matrix: the scores of a query head with the keys of other groups are masked.
That multiplies numbers in vain, on a unit that waits for memory anyway, and needs no head to be cut out of a tile.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

LOWEST = -1e30
"""In place of minus infinity, whose difference with itself is no number."""


def _body(
    _table_ref: Any,
    lengths_ref: Any,
    query_ref: Any,
    key_ref: Any,
    value_ref: Any,
    output_ref: Any,
    top_ref: Any,
    sum_ref: Any,
    acc_ref: Any,
    *,
    scale: float,
    kv_heads: int,
    block_size: int,
    window: int | None,
    soft_cap: float | None,
) -> None:
    request, block = pl.program_id(0), pl.program_id(1)
    length = lengths_ref[request]

    @pl.when(block == 0)
    def _() -> None:
        top_ref[...] = jnp.full_like(top_ref, LOWEST)
        sum_ref[...] = jnp.zeros_like(sum_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    @pl.when(block * block_size < length)
    def _() -> None:
        query, key, value = query_ref[0], key_ref[0], value_ref[0]
        heads, columns = query.shape[0], key.shape[0]
        scores = jax.lax.dot_general(
            query, key, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32, precision=_precision(key)
        )
        scores *= scale
        if soft_cap is not None:
            scores = soft_cap * jnp.tanh(scores / soft_cap)
        shape = (heads, columns)
        column = jax.lax.broadcasted_iota(jnp.int32, shape, 1)
        position = block * block_size + _div(column, kv_heads)
        group = _div(jax.lax.broadcasted_iota(jnp.int32, shape, 0), heads // kv_heads)
        seen = (position < length) & (jax.lax.rem(column, jnp.int32(kv_heads)) == group)
        if window is not None:
            seen &= position >= length - window
        scores = jnp.where(seen, scores, LOWEST)
        top = jnp.maximum(top_ref[...], jnp.max(scores, axis=-1, keepdims=True))
        shrunk = jnp.exp(top_ref[...] - top)
        weights = jnp.where(seen, jnp.exp(scores - top), 0.0)
        # What lies in slots that were never written may be no number, and no number times zero is none either.
        row = jax.lax.broadcasted_iota(jnp.int32, (columns, 1), 0)
        value = jnp.where(block * block_size + _div(row, kv_heads) < length, value, jnp.zeros_like(value))
        sum_ref[...] = sum_ref[...] * shrunk + jnp.sum(weights, axis=-1, keepdims=True)
        acc_ref[...] = acc_ref[...] * shrunk + jax.lax.dot_general(
            weights.astype(value.dtype),
            value,
            (((1,), (0,)), ((), ())),
            preferred_element_type=jnp.float32,
            precision=_precision(value),
        )
        top_ref[...] = top

    @pl.when(block == pl.num_programs(1) - 1)
    def _() -> None:
        total = sum_ref[...]
        output_ref[0] = (acc_ref[...] / jnp.where(total == 0.0, 1.0, total)).astype(output_ref.dtype)


def _div(x: Any, by: int) -> Any:
    """Return x // by for numbers from 0; ``//`` minds the sign, in several operations more."""
    return jax.lax.div(x, jnp.int32(by))


def _precision(x: jax.Array) -> jax.lax.Precision:
    return jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else jax.lax.Precision.DEFAULT


@functools.partial(jax.jit, static_argnames=("scale", "window", "soft_cap", "interpret"))
def paged_attention(
    query: jax.Array,
    key_cache: jax.Array,
    value_cache: jax.Array,
    block_table: jax.Array,
    lengths: jax.Array,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    interpret: bool = False,
) -> jax.Array:
    """Return the attention of one new token for each request, (requests, heads, head_size), of the query's dtype.

    Args:
        query: (requests, heads, head_size).
        key_cache: (blocks, block_size, kv_heads, head_size), with the new tokens' keys; unwritten slots do not matter.
        value_cache: likewise.
        block_table: (requests, columns) int32; entries past a request's length are not read.
        lengths: (requests,) int32, positions with the new one; 0: the row comes out as zeros.
        scale: multiplies the scores.
        window: positions that a token sees, itself included; None: all.
        soft_cap: scores become cap * tanh(score / cap); None: they stay.
        interpret: run it on a CPU.
    """
    requests, heads, head_size = query.shape
    blocks, block_size, kv_heads, _ = key_cache.shape
    columns = block_table.shape[1]

    def cached(request: Any, block: Any, table: Any, sizes: Any) -> tuple[Any, int, int]:
        # Behind the last block of a request it is named again: what is there already is not fetched.
        last = jnp.maximum(_div(sizes[request] + block_size - 1, block_size) - 1, 0)
        return jnp.clip(table[request * columns + jnp.minimum(block, last)], 0, blocks - 1), 0, 0

    rows = pl.BlockSpec((1, heads, head_size), lambda request, *_: (request, 0, 0))
    pages = pl.BlockSpec((1, block_size * kv_heads, head_size), cached)
    positions = requests * columns * block_size
    cost = pl.CostEstimate(
        flops=4 * positions * kv_heads * heads * head_size,
        transcendentals=positions * heads * kv_heads,
        bytes_accessed=2 * positions * kv_heads * head_size * key_cache.dtype.itemsize + 2 * query.nbytes,
    )
    flat = (blocks, block_size * kv_heads, head_size)
    return pl.pallas_call(
        functools.partial(
            _body, scale=scale, kv_heads=kv_heads, block_size=block_size, window=window, soft_cap=soft_cap
        ),
        out_shape=jax.ShapeDtypeStruct(query.shape, query.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(requests, columns),
            in_specs=[rows, pages, pages],
            out_specs=rows,
            scratch_shapes=[
                pltpu.VMEM((heads, 1), jnp.float32),
                pltpu.VMEM((heads, 1), jnp.float32),
                pltpu.VMEM((heads, head_size), jnp.float32),
            ],
        ),
        cost_estimate=cost,
        interpret=interpret,
        name="paged_attention",
    )(
        block_table.reshape(-1).astype(jnp.int32),
        lengths.astype(jnp.int32),
        query,
        key_cache.reshape(flat),
        value_cache.reshape(flat),
    )
