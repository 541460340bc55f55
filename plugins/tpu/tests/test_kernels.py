"""opdock_tpu.kernels in Pallas' interpreter, against float64 computed by numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


def _norm(x: Any, weight: Any, epsilon: float) -> Any:
    x = np.asarray(x, np.float64)
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)
    return y if weight is None else y * np.asarray(weight, np.float64)


TOLERANCE = {"float32": 3e-6, "bfloat16": 2.0**-6}
"""Of results near 1: bfloat16 is rounded once before and once after the weight, each by half of 2**-8 of up to 4."""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("rows", "width"), [(1, 64), (37, 640), (300, 1024), (3, 100), (17, 40000)])
@pytest.mark.parametrize("weighted", [True, False])
def test_norms_agree_with_float64(jax: Any, dtype: str, rows: int, width: int, weighted: bool) -> None:
    from opdock_tpu.kernels import norms

    rng = np.random.default_rng(rows)
    x, r = (jax.numpy.asarray(rng.standard_normal((rows, width)), dtype) for _ in range(2))
    w = jax.numpy.asarray(rng.uniform(0.5, 1.5, width), dtype) if weighted else None
    limit = TOLERANCE[dtype]
    got = norms.rms_norm(x, w, 1e-5, interpret=True)
    assert got.dtype == x.dtype
    np.testing.assert_allclose(np.asarray(got, np.float64), _norm(x, w, 1e-5), atol=limit, rtol=limit)
    y, total = norms.fused_add_rms_norm(x, r, w, 1e-5, interpret=True)
    exact = np.asarray(x, np.float64) + np.asarray(r, np.float64)
    np.testing.assert_allclose(np.asarray(y, np.float64), _norm(exact, w, 1e-5), atol=limit, rtol=limit)
    np.testing.assert_allclose(
        np.asarray(total, np.float64), exact, atol=0, rtol=2.0**-8 if dtype == "bfloat16" else 1e-6
    )


@pytest.mark.parametrize(
    ("rows", "width", "itemsize"), [(5, 64, 4), (10_000, 64, 2), (10_000, 4096, 2), (99, 65536, 4)]
)
def test_a_block_of_rows_is_whole_tiles_or_everything_and_fits_its_memory(
    jax: Any, rows: int, width: int, itemsize: int
) -> None:
    from opdock_tpu.kernels import norms

    size = norms.block_rows(rows, width, itemsize)
    assert size == rows or size % (32 // itemsize) == 0
    assert size == min(rows, 32 // itemsize) or size * width * itemsize <= norms.BLOCK_BYTES


def _attention(
    q: Any, k: Any, v: Any, position: int, scale: float, window: Any, cap: Any, slopes: Any, sinks: Any
) -> Any:
    """Return the attention of one token at ``position``; q (heads, d), k and v (positions, kv_heads, d)."""
    group = q.shape[0] // k.shape[1]
    k, v = (np.repeat(x[: position + 1], group, 1).astype(np.float64) for x in (k, v))
    s = np.einsum("hd,phd->hp", q.astype(np.float64), k) * scale
    if cap is not None:
        s = cap * np.tanh(s / cap)
    where = np.arange(position + 1)
    if slopes is not None:
        s = s + slopes[:, None] * (where - position)
    if window is not None:
        s = np.where(where > position - window, s, -np.inf)
    top = s.max(-1, keepdims=True)
    e = np.exp(s - top)
    total = e.sum(-1, keepdims=True) + (0 if sinks is None else np.exp(sinks[:, None] - top))
    return np.einsum("hp,phd->hd", e / total, v)


def _cache(rng: Any, lengths: Any, block: int, kv_heads: int, head: int) -> tuple[Any, Any, Any]:
    """Return caches whose unwritten slots are no numbers, and a block table out of order."""
    columns = max(-(-int(n) // block) for n in lengths) + 1
    count = len(lengths) * columns + 2
    table = rng.permutation(count)[: len(lengths) * columns].reshape(len(lengths), columns).astype(np.int32)
    caches = [np.full((count, block, kv_heads, head), np.nan, np.float32) for _ in range(2)]
    for row, length in zip(table, lengths, strict=True):
        for p in range(int(length)):
            for cache in caches:
                cache[row[p // block], p % block] = rng.standard_normal((kv_heads, head))
    return caches[0], caches[1], table


@pytest.mark.parametrize(("heads", "kv_heads", "head", "block"), [(8, 2, 128, 16), (4, 4, 128, 8), (8, 1, 256, 32)])
@pytest.mark.parametrize(("window", "cap"), [(None, None), (7, None), (1, 3.0), (1000, 3.0)])
def test_paged_attention_agrees_with_float64(
    jax: Any, heads: int, kv_heads: int, head: int, block: int, window: int | None, cap: float | None
) -> None:
    from opdock_tpu.kernels.paged_attention import paged_attention

    rng = np.random.default_rng(heads + head)
    lengths = np.array([1, block, block + 1, 3 * block - 1, 0], np.int32)
    keys, values, table = _cache(rng, lengths, block, kv_heads, head)
    q = rng.standard_normal((len(lengths), heads, head)).astype(np.float32)
    got = np.asarray(
        paged_attention(q, keys, values, table, lengths, scale=0.1, window=window, soft_cap=cap, interpret=True)
    )
    for request, length in enumerate(lengths[:-1]):
        k, v = (cache[table[request]].reshape(-1, kv_heads, head) for cache in (keys, values))
        want = _attention(q[request], k, v, int(length) - 1, 0.1, window, cap, None, None)
        np.testing.assert_allclose(got[request], want, atol=3e-6, rtol=1e-5)
    assert not got[-1].any()  # a request that is not there


def test_paged_attention_in_bfloat16_is_off_by_its_roundings(jax: Any) -> None:
    from opdock_tpu.kernels.paged_attention import paged_attention

    rng, dtype = np.random.default_rng(3), jax.numpy.bfloat16
    lengths = np.array([33], np.int32)
    keys, values, table = _cache(rng, lengths, 16, 2, 128)
    q, keys, values = (jax.numpy.asarray(x, dtype) for x in (rng.standard_normal((1, 4, 128)), keys, values))
    got = paged_attention(q, keys, values, table, lengths, scale=0.1, interpret=True)
    k, v = (np.asarray(c, np.float32)[table[0]].reshape(-1, 2, 128) for c in (keys, values))
    want = _attention(np.asarray(q, np.float32)[0], k, v, 32, 0.1, None, None, None, None)
    assert got.dtype == dtype
    np.testing.assert_allclose(np.asarray(got, np.float32)[0], want, atol=1.5e-2)


@pytest.mark.parametrize("features", [{}, {"window": 5}, {"soft_cap": 2.0}, {"slopes": 1}, {"sinks": 1}, {"all": 1}])
def test_the_formula_agrees_with_float64_whatever_lies_behind_the_filled_part(
    jax: Any, features: dict[str, Any]
) -> None:
    from opdock_tpu.kernels import formula

    rng = np.random.default_rng(0)
    heads, kv_heads, head, new = 6, 2, 16, 3
    every = "all" in features
    window = 5 if every else features.get("window")
    cap = 2.0 if every else features.get("soft_cap")
    slopes = -np.arange(1, heads + 1, dtype=np.float32) / 8 if every or "slopes" in features else None
    sinks = rng.standard_normal(heads).astype(np.float32) if every or "sinks" in features else None
    first = np.array([0, 9], np.int32)
    q = rng.standard_normal((2, new, heads, head)).astype(np.float32)
    k, v = (rng.standard_normal((2, kv_heads, 20, head)).astype(np.float32) for _ in range(2))
    for x in (k, v):
        for request, start in enumerate(first):
            x[request, :, start + new :] = np.nan
    got = np.asarray(
        formula.attend(q, k, v, first, first + new, scale=0.25, window=window, soft_cap=cap, slopes=slopes, sinks=sinks)
    )
    for request, start in enumerate(first):
        for i in range(new):
            ks, vs = (x[request].transpose(1, 0, 2) for x in (k, v))
            want = _attention(q[request, i], ks, vs, int(start) + i, 0.25, window, cap, slopes, sinks)
            np.testing.assert_allclose(got[request, i], want, atol=3e-6, rtol=1e-5)


def test_writing_to_slots_leaves_the_rest_and_drops_padding(jax: Any) -> None:
    from opdock_tpu.kernels import formula

    cache = np.arange(2 * 4 * 1 * 2, dtype=np.float32).reshape(2, 4, 1, 2)
    new = -np.ones((3, 1, 2), np.float32)
    got = np.asarray(formula.write(jax.numpy.asarray(cache), new, np.array([5, -1, 0], np.int32)))
    want = cache.copy()
    want[1, 1], want[0, 0] = -1, -1
    np.testing.assert_array_equal(got, want)


def test_a_kernel_that_is_built_for_tpus_is_no_program_for_this_cpu(jax: Any) -> None:
    from opdock_tpu.kernels import norms

    with pytest.raises(ValueError, match="interpret"):
        norms.rms_norm(np.ones((8, 128), np.float32), None, 1e-5)
