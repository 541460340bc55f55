"""RMS normalisation in Pallas: one pass over rows that lie in a core's vector memory."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

BLOCK_BYTES = 1 << 20
"""Bytes of one block of rows: the pipeline keeps two of each operand, in at least 16 MiB of vector memory."""


def block_rows(rows: int, width: int, itemsize: int) -> int:
    """Return how many rows a block has: all of them, or a multiple of the rows that a tile packs.

    Args:
        rows: of the whole.
        width: elements of a row.
        itemsize: bytes of an element.
    """
    packed = 32 // itemsize
    fitting = BLOCK_BYTES // (width * itemsize) // packed * packed
    return min(rows, max(packed, min(fitting, 256)))


def _normalised(wide: jax.Array, weight: jax.Array | None, epsilon: float, dtype: Any) -> jax.Array:
    """Return rows that are normalised and weighted, with the rounding points of the op ``rms_norm``."""
    y = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + epsilon)
    if weight is not None:
        # A product of two numbers of 16 bits is exact in float32: rounded once, it is the product in 16 bits.
        y = y.astype(weight.dtype).astype(jnp.float32) * weight.astype(jnp.float32)
        y = y.astype(weight.dtype)
    return y.astype(dtype)


def _norm_body(x_ref: Any, *refs: Any, epsilon: float) -> None:
    weight_ref, y_ref = refs if len(refs) == 2 else (None, *refs)
    weight = None if weight_ref is None else weight_ref[...]
    y_ref[...] = _normalised(x_ref[...].astype(jnp.float32), weight, epsilon, y_ref.dtype)


def _add_norm_body(x_ref: Any, residual_ref: Any, *refs: Any, epsilon: float) -> None:
    weight_ref, y_ref, total_ref = refs if len(refs) == 3 else (None, *refs)
    total = x_ref[...].astype(jnp.float32) + residual_ref[...].astype(jnp.float32)
    weight = None if weight_ref is None else weight_ref[...]
    y_ref[...] = _normalised(total, weight, epsilon, y_ref.dtype)
    total_ref[...] = total.astype(total_ref.dtype)


@functools.partial(jax.jit, static_argnames=("epsilon", "interpret"))
def rms_norm(x: jax.Array, weight: jax.Array | None, epsilon: float, *, interpret: bool = False) -> jax.Array:
    """Return the rows of x, (rows, width), normalised by their root mean square, times ``weight``, (width,).

    Widened to float32; rounded as the op ``rms_norm`` says.
    """
    return _over_rows(_norm_body, (x,), weight, epsilon, 1, interpret=interpret)[0]


@functools.partial(jax.jit, static_argnames=("epsilon", "interpret"))
def fused_add_rms_norm(
    x: jax.Array, residual: jax.Array, weight: jax.Array | None, epsilon: float, *, interpret: bool = False
) -> tuple[jax.Array, jax.Array]:
    """Return (norm of x + residual, x + residual), both (rows, width) and of x's dtype; see ``rms_norm``."""
    y, total = _over_rows(_add_norm_body, (x, residual), weight, epsilon, 2, interpret=interpret)
    return y, total


def _over_rows(
    body: Any,
    rows: tuple[jax.Array, ...],
    weight: jax.Array | None,
    epsilon: float,
    outputs: int,
    *,
    interpret: bool,
) -> list[jax.Array]:
    count, width = rows[0].shape
    size = block_rows(count, width, max(x.dtype.itemsize for x in rows))
    block = pl.BlockSpec((size, width), lambda i: (i, 0))
    whole = [] if weight is None else [pl.BlockSpec((1, width), lambda _: (0, 0))]
    operands = [*rows, *([] if weight is None else [weight.reshape(1, width)])]
    moved = (len(rows) + outputs) * count * width * rows[0].dtype.itemsize
    made = pl.pallas_call(
        functools.partial(body, epsilon=epsilon),
        out_shape=[jax.ShapeDtypeStruct((count, width), rows[0].dtype)] * outputs,
        grid=(pl.cdiv(count, size),),
        in_specs=[*[block] * len(rows), *whole],
        out_specs=[block] * outputs,
        cost_estimate=pl.CostEstimate(flops=4 * count * width, transcendentals=count, bytes_accessed=moved),
        interpret=interpret,
        name=body.__name__.strip("_").removesuffix("_body"),
    )(*operands)
    return list(made)
