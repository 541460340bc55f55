"""rotary_embedding and reshape_and_cache: against float64 and a loop, positions and slots out of range, guards."""

from __future__ import annotations

from typing import Any

import cuda_exact as exact
import cuda_placing as placing
import pytest
import torch
from cuda_placing import same_bits
from torch import Tensor

from opdock_cuda import ops

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("kernels")]
DEVICE = "cuda"
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
NAN = float("nan")


def rows(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype)


# -- rotary


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("head_size", "rot"), [(64, 64), (128, 128), (80, 32), (10, 6), (256, 256), (192, 64), (2, 2)])
def test_rotary_is_what_the_formula_says(head_size: int, rot: int, dtype: torch.dtype, neox: bool) -> None:
    torch.manual_seed(0)
    angles = torch.arange(128, device=DEVICE)[:, None] * 10000.0 ** (-torch.arange(rot // 2, device=DEVICE) / rot)
    for cache in dict.fromkeys((dtype, torch.float32)):
        table = torch.cat((angles.cos(), angles.sin()), -1).to(cache)
        for heads, kv_heads in ((1, 1), (9, 3), (32, 8), (6, 0)):
            for tokens in (0, 1, 7, 257):
                for integer, layouts in (
                    (torch.int64, ("dense", "columns", "swapped")),
                    (torch.int32, ("odd offset", "three")),
                ):
                    positions = torch.randint(0, 128, (tokens,), device=DEVICE, dtype=integer)
                    for layout in layouts:
                        q, k = (_heads(tokens, n, head_size, dtype, layout) for n in (heads, kv_heads))
                        want = [exact.rotary(t.x, positions, table, head_size, neox=neox) for t in (q, k)]
                        ops.rotary_embedding_(positions, q.x, k.x, head_size, table, neox)
                        what = f"{tokens} tokens, {heads} and {kv_heads} heads, {layout}, {integer}, {cache}"
                        for t, y in zip((q, k), want, strict=True):
                            # Rounded once; products and their difference in float32, of numbers below 6.
                            exact.Near("", t.x, y, exact.half_step(dtype) * 1.01, 2e-6).check(what)
                            assert t.untouched_outside(), what
                            if rot < head_size:
                                shape = (tokens, t.x.shape[1:].numel() // head_size, head_size)
                                whole = t.x.reshape(shape)[..., rot:]
                                before = t.before.as_strided(t.x.shape, t.x.stride(), t.x.storage_offset())
                                assert same_bits(whole, before.reshape(shape)[..., rot:]), what


def _heads(tokens: int, heads: int, size: int, dtype: torch.dtype, layout: str) -> Any:
    """Rows of heads; ``swapped`` has the heads outside."""
    if layout in ("three", "swapped"):
        shape = (tokens, heads, size)
        strides = (heads * size + 16, size, 1) if layout == "three" else (size, tokens * size, 1)
        reach = sum(s * max(0, n - 1) for s, n in zip(strides, shape, strict=True)) + 1
        buffer = torch.full((reach + 128,), NAN, dtype=dtype, device=DEVICE)
        x = buffer.as_strided(shape, strides, 64)
        x.copy_(torch.randn(shape, device=DEVICE))
        return placing.Placed(buffer, x)
    return placing.place(torch.randn(tokens, heads * size, device=DEVICE).to(dtype), layout)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("neox", [True, False])
def test_a_position_that_the_cache_has_not_makes_its_row_nan_and_no_other(neox: bool, offset: int) -> None:
    positions = torch.tensor([5, -1, 127, 128, 1 << 40, -(1 << 40), 0], device=DEVICE)
    query, key, table = rows(7, 4 * 64), rows(7, 64), rows(128, 64)
    if offset:  # the path for any alignment
        query = torch.empty(7 * 256 + 1, dtype=query.dtype, device=DEVICE)[1:].view(7, 256).copy_(query)
    ops.rotary_embedding_(positions, query, key, 64, table, neox)
    expected = [False, True, False, True, True, True, False]
    for t in (query, key):
        assert t.isnan().all(-1).tolist() == t.isnan().any(-1).tolist() == expected


# -- reshape_and_cache


@pytest.mark.parametrize("integer", [torch.int64, torch.int32])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float8_e4m3fn])
@pytest.mark.parametrize(("heads", "size"), [(1, 1), (2, 3), (8, 128), (3, 80), (16, 256)])
def test_keys_and_values_are_written_into_their_slots_alone(
    heads: int, size: int, dtype: torch.dtype, integer: torch.dtype
) -> None:
    torch.manual_seed(0)
    for tokens in (0, 1, 7, 65):
        key, value = (
            torch.randn(tokens, 3 * heads * size + 1, device=DEVICE).to(dtype)[:, n : n + heads * size]
            for n in (0, heads * size + 1)
        )
        key, value = key.view(tokens, heads, size), value.view(tokens, heads, size)
        both = torch.randn(6, 2, 16, heads, size, device=DEVICE).to(dtype)  # blocks of keys and values in turn
        caches = both[:, 0], both[:, 1]
        slots = torch.randperm(96, device=DEVICE)[:tokens].to(integer)
        beyond = [-1, 96, 97, -(2**31), 2**31 - 1][:tokens]
        slots[: len(beyond) // 2] = torch.tensor(beyond[: len(beyond) // 2], dtype=integer, device=DEVICE)
        want = [cache.clone() for cache in caches]
        for token, slot in enumerate(slots.tolist()):
            if 0 <= slot < 96:
                want[0][slot // 16, slot % 16], want[1][slot // 16, slot % 16] = key[token], value[token]
        ops.reshape_and_cache_(key, value, *caches, slots)
        assert same_bits(caches[0], want[0]) and same_bits(caches[1], want[1])


def test_slots_that_are_padding_or_beyond_the_cache_are_left_alone() -> None:
    key, value = rows(6, 2, 64), rows(6, 2, 64)
    caches = torch.zeros(2, 4, 2, 64, dtype=key.dtype, device=DEVICE), torch.zeros_like(rows(4, 4, 2, 64))[:2]
    slots = torch.tensor([-1, 8, 7, 1 << 40, -(1 << 62), 0], device=DEVICE)
    ops.reshape_and_cache_(key, value, *caches, slots)
    for cache, given in zip(caches, (key, value), strict=True):
        assert torch.equal(cache.view(8, 2, 64)[[7, 0]], given[[2, 5]])
        assert not cache.view(8, 2, 64)[1:7].any()
