"""Tensors of more than 2^31 elements: every row is looked at, and has to be that of a small batch, bit for bit."""

from __future__ import annotations

import cuda_spans as spans
import pytest
import torch
from cuda_spans import Span
from cuda_table import ROW_OPS, STATIC_SCALE, RowOp, Values, faults
from torch import Tensor

from opdock import ir
from opdock_cuda import ops

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("kernels", "registered")]
DEVICE = "cuda"
DTYPE = torch.bfloat16
FAR = 1 << 31
TILE = 64
"""Rows that are different; the tensor repeats them."""
NEEDED = 40 * 2**30


@pytest.fixture(autouse=True)
def room(kernels: None) -> None:
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    if free < NEEDED:
        pytest.skip(f"needs {NEEDED >> 30} GiB of free GPU memory, and {free >> 30} are free")


def repeated(tile: Tensor) -> Tensor:
    """Return the tile as often as it takes to have more than 2^31 elements, and once more."""
    times = FAR // tile.numel() + 2
    return tile.unsqueeze(0).expand(times, *tile.shape).reshape(times * tile.shape[0], *tile.shape[1:])


def alike(result: Tensor) -> bool:
    """Return whether all tiles of a result have the bits of the first."""
    bits = result.view(torch.uint8 if result.itemsize == 1 else torch.int16 if result.itemsize == 2 else torch.int32)
    tiles = bits.view(-1, TILE, *bits.shape[1:])
    return all(bool((part == tiles[:1]).all()) for part in tiles.split(4096))


@pytest.mark.parametrize("hidden", [4096, 1031])
@pytest.mark.parametrize("op", ROW_OPS, ids=lambda o: f"{o.op}-{o.kind}")
def test_rows_beyond_32_bits_are_those_of_a_small_batch(op: RowOp, hidden: int) -> None:
    values = Values.random(op, TILE, hidden, DTYPE, DEVICE)
    scale = torch.full((1,), STATIC_SCALE, device=DEVICE) if op.out == "static" else None
    for provider in ("cuda", "triton"):
        impl = ir.registry[op.op].impls[provider]
        if not impl.supported:
            continue
        x = repeated(values.x)
        residual = None if values.residual is None else repeated(values.residual)
        assert x.numel() > FAR
        arguments = op.arguments(x, residual, values.weight, scale)
        assert impl.supports_args(*arguments)
        got = impl.impl_fn(*arguments)
        results = got if isinstance(got, tuple) else (got,)
        first = tuple(r[:TILE] for r in results)
        assert not (said := list(faults(values, TILE, first, weighted=op.norm, bound=None, provider=provider))), said
        assert all(alike(r) for r in results), f"{provider}: rows differ from those of the first tile"
        del x, residual, arguments, got, results, first
        torch.cuda.empty_cache()


@pytest.mark.parametrize("neox", [True, False], ids=["halves", "pairs"])
@pytest.mark.parametrize("size", [128, 66])
def test_rotary_beyond_32_bits_is_that_of_a_small_batch(size: int, neox: bool) -> None:
    heads, tile = 32, torch.randn(TILE, 32 * size, device=DEVICE).to(DTYPE)
    positions = torch.randint(0, 512, (TILE,), device=DEVICE)
    table = torch.randn(512, size, device=DEVICE).to(DTYPE)
    cos, sin = table[positions].chunk(2, -1)
    span = spans.rotated(tile.view(TILE, heads, size), cos, sin, neox=neox)
    low_high = Span(span.low.view(tile.shape), span.high.view(tile.shape))
    for provider in ("cuda", "triton"):
        impl = ir.registry["rotary_embedding"].impls[provider]
        if not impl.supported:
            continue
        query, key = repeated(tile), None
        key = query[:, : 8 * size].clone()
        where = positions.repeat(len(query) // TILE)
        assert impl.supports_args(where, query, key, size, table, neox)
        impl.impl_fn(where, query, key, size, table, neox)
        assert not (said := spans.wrong(query[:TILE], low_high)), said
        assert alike(query) and torch.equal(key, query[:, : 8 * size]), provider
        del query, key
        torch.cuda.empty_cache()


@pytest.mark.parametrize("size", [128, 66])
def test_keys_and_slots_beyond_32_bits_are_written_where_they_belong(size: int) -> None:
    key = repeated(torch.randn(TILE, 8, size, device=DEVICE).to(DTYPE))
    key[-1] = 1.5
    blocks = -(-len(key) // 16)
    caches = [torch.zeros(blocks, 16, 8, size, dtype=DTYPE, device=DEVICE) for _ in range(2)]
    slots = torch.arange(blocks * 16 - 1, blocks * 16 - 1 - len(key), -1, device=DEVICE)
    ops.reshape_and_cache_(key, key, *caches, slots)
    for cache in caches:
        flat = cache.view(-1, 8, size)
        for start in range(0, len(key), 1 << 18):
            part = slots[start : start + (1 << 18)]
            assert torch.equal(flat[part], key[start : start + (1 << 18)])
