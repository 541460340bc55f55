"""The op rotary_and_cache: what it defines, against float64 and against the two ops that it stands for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from opdock import ir
from opdock.nn.attention.impl import write_slots
from opdock.nn.rotary_and_cache import CacheShapeError, rotary_and_cache, run_in_place

pytestmark = pytest.mark.usefixtures("taken_back")
HEADS, KV_HEADS, SIZE, BLOCK = 4, 2, 16, 8


def arguments(
    dtype: torch.dtype = torch.float32,
    held: torch.dtype | None = None,
    *,
    neox: bool = True,
    rot: int = SIZE,
    slots: tuple[int, ...] = (9, -1, 0, 31, 7, -1),
) -> list[Any]:
    """Return arguments whose query, key and value are views of one tensor, and whose caches take turns."""
    tokens = len(slots)
    qkv = torch.randn(tokens, (HEADS + 2 * KV_HEADS) * SIZE).to(dtype)
    q, k, v = qkv.split((HEADS * SIZE, KV_HEADS * SIZE, KV_HEADS * SIZE), dim=-1)
    both = torch.randn(4, 2, BLOCK, KV_HEADS, SIZE).to(held or dtype)
    angles = torch.arange(64)[:, None] * 100.0 ** (-torch.arange(rot // 2) / rot)
    table = torch.cat((angles.cos(), angles.sin()), -1)
    scales = [torch.tensor(0.5), torch.tensor(2.0)]
    given = [torch.tensor(slots), SIZE, table, *scales, neox]
    return [torch.randint(0, 64, (tokens,)), q, k, v.unflatten(-1, (KV_HEADS, SIZE)), both[:, 0], both[:, 1], *given]


def exact(x: Tensor, positions: Tensor, table: Tensor, *, neox: bool) -> Tensor:
    """Return rows of heads, rotated in float64, pair by pair."""
    out, rot = x.double().view(len(x), -1, SIZE).clone(), table.shape[1]
    for token, position in enumerate(positions.tolist()):
        for pair in range(rot // 2):
            i, j = (pair, pair + rot // 2) if neox else (2 * pair, 2 * pair + 1)
            cos, sin = table[position, pair].double(), table[position, pair + rot // 2].double()
            a, b = out[token, :, i].clone(), out[token, :, j].clone()
            out[token, :, i], out[token, :, j] = a * cos - b * sin, b * cos + a * sin
    return out.view(x.shape)


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("rot", [SIZE, 6])
def test_it_is_what_the_formula_says_in_float64(rot: int, neox: bool) -> None:
    given = arguments(rot=rot, neox=neox)
    positions, query, key, value, key_cache, value_cache, slots, _, table, *_ = given
    got = ir.native.rotary_and_cache(*given)
    want = [exact(t, positions, table, neox=neox) for t in (query, key)]
    for cache, rows in ((key_cache, want[1]), (value_cache, value.double())):
        filled = cache.double().reshape(-1, KV_HEADS, SIZE).clone()
        for token, slot in enumerate(slots.tolist()):
            if slot >= 0:
                filled[slot] = rows[token].view(KV_HEADS, SIZE)
        want.append(filled.view(cache.shape))
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine.double(), theirs, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("held", [None, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_it_gives_the_bits_of_the_two_ops_one_after_the_other(dtype: torch.dtype, held: torch.dtype | None) -> None:
    given = arguments(dtype, held)
    before = [t.clone() for t in given[1:6]]
    got = ir.native.rotary_and_cache(*given)
    positions, query, key, value, key_cache, value_cache, slots, size, table, k_scale, v_scale, neox = given
    query, key = ir.native.rotary_embedding(positions, query, key, size, table, neox)
    caches = key_cache.clone(), value_cache.clone()
    write_slots(key.view(value.shape), caches[0], slots, k_scale)
    write_slots(value, caches[1], slots, v_scale)
    for mine, theirs in zip(got, (query, key, *caches), strict=True):
        assert torch.equal(mine.contiguous().view(torch.uint8), theirs.contiguous().view(torch.uint8))
    for now, then in zip(given[1:6], before, strict=True):
        assert torch.equal(now.contiguous().view(torch.uint8), then.contiguous().view(torch.uint8))


def test_a_slot_behind_the_cache_is_written_nowhere() -> None:
    given = arguments(slots=(32, 1 << 40, -7))
    *_, keys, values = ir.native.rotary_and_cache(*given)
    assert torch.equal(keys, given[4]) and torch.equal(values, given[5])


def test_no_tokens_change_nothing() -> None:
    given = arguments(slots=())
    query, key, keys, values = ir.native.rotary_and_cache(*given)
    assert query.shape == (0, HEADS * SIZE) and key.shape == (0, KV_HEADS * SIZE)
    assert torch.equal(keys, given[4]) and torch.equal(values, given[5])


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (3, torch.zeros(6, 1, SIZE)),
        (3, torch.zeros(5, KV_HEADS, SIZE)),
        (4, torch.zeros(4 * BLOCK, KV_HEADS, SIZE)),
        (5, torch.zeros(3, BLOCK, KV_HEADS, SIZE)),
        (6, torch.zeros(7, dtype=torch.long)),
        (7, 8),
    ],
)
def test_what_does_not_fit_is_an_error(place: int, value: Any) -> None:
    given = arguments()
    given[place] = value
    with pytest.raises(CacheShapeError, match="do not fit"):
        ir.native.rotary_and_cache(*given)


def test_inputs_are_made_for_it_and_their_slots_are_free() -> None:
    given = rotary_and_cache.generate_inputs(num_tokens=40, hidden_size=128, dtype=torch.bfloat16)
    slots = given[6][given[6] >= 0]
    assert len(slots) == len(slots.unique()) < 40
    assert [t.dtype for t in ir.native.rotary_and_cache(*given)] == [torch.bfloat16] * 4


def test_only_a_kernel_that_writes_in_place_is_run_in_place() -> None:
    given = arguments()
    before = [t.clone() for t in given[1:6]]
    rotary_and_cache.set_default(["native"])
    assert not run_in_place(*given)
    register_in_place("t_never", lambda *_: False)
    rotary_and_cache.set_default(["t_never", "native"])
    assert not run_in_place(*given)
    assert all(torch.equal(now, then) for now, then in zip(given[1:6], before, strict=True))
    want = ir.native.rotary_and_cache(*given)
    register_in_place("t_always", lambda *_: True)
    rotary_and_cache.set_default(["t_always", "native"])
    assert run_in_place(*given)
    assert all(torch.equal(given[i], t) for i, t in zip((1, 2, 4, 5), want, strict=True))


def register_in_place(provider: str, said: Any) -> None:
    def takes(
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
        is_neox: bool = True,
    ) -> bool:
        return said()

    @rotary_and_cache.register_impl(provider, supports_args=takes, inplace=True)
    def write(
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
        is_neox: bool = True,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        given = query, key, value, key_cache, value_cache, slot_mapping, head_size, cos_sin_cache, k_scale, v_scale
        made = ir.native.rotary_and_cache(positions, *given, is_neox)
        for target, result in zip((query, key, key_cache, value_cache), made, strict=True):
            target.copy_(result)
        return query, key, key_cache, value_cache
