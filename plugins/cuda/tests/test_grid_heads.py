"""rotary_embedding and reshape_and_cache on the GPU: sizes and numbers of heads, rows, layouts, between canaries."""

from __future__ import annotations

from itertools import product
from typing import Any

import cuda_spans as spans
import pytest
import torch
from cuda_canaries import MARGIN, Canaries, geometry
from cuda_findings import Findings
from cuda_spans import Span
from torch import Tensor

from opdock import ir
from opdock_cuda import ops

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("kernels", "registered")]
DEVICE = "cuda"
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
TOKENS = (0, 1, 2, 7, 255, 256, 257, 8192)
SIZES = ((64, 64), (70, 6), (80, 80), (80, 32), (96, 96), (128, 128), (128, 64), (192, 64), (256, 256))
"""Head size and rotated columns."""
HEADS = ((1, 1), (8, 1), (9, 3), (32, 8), (6, 0))
LAYOUTS = ("dense", "columns", "padded", "odd offset", "three", "swapped", "transposed")
POSITIONS = 512
LARGE = 8192 * 32 * 128
"""Elements of a query; larger ones are tried with fewer rows."""


class Half:
    """Query or key: the values, what is right, and how they are placed."""

    def __init__(self, tokens: int, heads: int, size: int, dtype: torch.dtype, seed: int) -> None:
        generator = torch.Generator(DEVICE).manual_seed(seed)
        self.heads, self.size = heads, size
        self.values = torch.randn((tokens, heads * size), generator=generator, device=DEVICE).to(dtype)
        self.span = Span(self.values, self.values)

    def turn(self, positions: Tensor, table: Tensor, *, neox: bool) -> None:
        """Compute what is right."""
        shape, rot = (len(self.values), self.heads, self.size), table.shape[1]
        low, high = self.values.clone().view(shape), self.values.clone().view(shape)
        for where in spans.chunks(len(self.values), self.heads * self.size):
            cos, sin = table[positions[where]].chunk(2, -1)
            part = spans.rotated(self.values.view(shape)[where, :, :rot], cos, sin, neox=neox)
            low[where, :, :rot], high[where, :, :rot] = part.low, part.high
        self.span = Span(low.view(self.values.shape), high.view(self.values.shape))

    def place(self, tokens: int, layout: str) -> Canaries:
        """Put the first rows into memory of a layout."""
        width = self.heads * self.size
        if layout == "three":
            where = ((tokens, self.heads, self.size), (width + 16, self.size, 1), MARGIN)
        elif layout == "swapped":
            where = ((tokens, self.heads, self.size), (self.size, max(tokens, 1) * self.size, 1), MARGIN)
        else:
            found = geometry(tokens, width, layout)
            assert found is not None
            where = found
        held = Canaries(self.values.dtype, where, DEVICE)
        held.put(self.values[:tokens])
        return held

    def look(self, what: str, got: Tensor, found: Findings) -> None:
        """Look at the first rows; columns that are not rotated have to be as they were."""
        tokens = got.shape[0]
        found.compare(what, got.reshape(tokens, self.values.shape[1]), self.span.first(tokens))


@pytest.mark.parametrize("neox", [True, False], ids=["halves", "pairs"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
def test_rotary_is_right_in_every_size_and_layout(dtype: torch.dtype, neox: bool) -> None:
    wrong: list[str] = []
    for (size, rot), (heads, kv_heads) in product(SIZES, HEADS):
        most = max(t for t in TOKENS if t * heads * size <= LARGE)
        halves = (Half(most, heads, size, dtype, 1), Half(most, kv_heads, size, dtype, 2))
        generator = torch.Generator(DEVICE).manual_seed(3)
        positions = torch.randint(0, POSITIONS, (most,), device=DEVICE, generator=generator)
        angles = torch.arange(POSITIONS, device=DEVICE)[:, None] * 1e4 ** (-torch.arange(rot // 2, device=DEVICE) / rot)
        for kind in dict.fromkeys((dtype, torch.float32)):
            table = torch.cat((angles.cos(), angles.sin()), -1).to(kind)
            for half in halves:
                half.turn(positions, table, neox=neox)
            found = Findings(DEVICE)
            for layout, tokens in product(LAYOUTS if kind is dtype else ("dense", "odd offset"), TOKENS):
                if tokens > most:
                    continue
                integer = torch.int64 if layout in ("dense", "columns", "swapped") else torch.int32
                what = f"{dtype}, cache {kind}, {tokens} tokens, {heads} and {kv_heads} heads of {size}, {rot} rotated"
                found.case = f"{what}, {layout}, {integer}"
                _turn(halves, positions[:tokens].to(integer), table, layout, found, neox=neox)
            wrong.extend(found.wrong())
    torch.cuda.empty_cache()
    assert not wrong, f"{len(wrong)} wrong:\n" + "\n".join(wrong[:20])


def _turn(
    halves: tuple[Half, Half], positions: Tensor, table: Tensor, layout: str, found: Findings, *, neox: bool
) -> None:
    op, size = ir.registry["rotary_embedding"], halves[0].size
    few = layout in ("dense", "three") or size == 128
    for provider in ("cuda", "triton", "the op"):
        if provider == "triton" and (provider not in op.impls or not few):
            continue
        if provider == "the op" and layout not in ("transposed", "columns"):
            continue
        held = [half.place(len(positions), layout) for half in halves]
        arguments: tuple[Any, ...] = (positions, held[0].x, held[1].x, size, table, neox)
        if provider == "the op":
            with op.set_priority(("cuda", "triton", "native")):
                results = op(*arguments)
            for half, kept in zip(halves, held, strict=True):
                found.add("the op: query or key was written", kept.has(half.values[: len(positions)]))
        elif not op.impls[provider].supports_args(*arguments):
            if layout != "transposed" and DEVICE == "cuda" and provider == "cuda":
                found.say("refused")
            continue
        else:
            results = op.impls[provider].impl_fn(*arguments)
            if any(a.numel() and a.data_ptr() != b.x.data_ptr() for a, b in zip(results, held, strict=True)):
                found.say(f"{provider}: the results are not the arguments")
        for name, half, got in zip(("query", "key"), halves, results, strict=True):
            half.look(f"{provider}: {name} is wrong", got, found)
        for kept in held:
            found.add(f"{provider}: memory beside query or key was written", kept.last())


# -- reshape_and_cache

SHAPES = ((1, 1), (2, 3), (1, 64), (3, 80), (8, 128), (16, 256))
BLOCK_SIZES = (1, 7, 16)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float8_e4m3fn, torch.float8_e5m2], ids=lambda d: str(d)[6:])
def test_keys_and_values_go_into_their_slots_from_every_layout(dtype: torch.dtype) -> None:
    wrong: list[str] = []
    for (heads, size), block, tokens in product(SHAPES, BLOCK_SIZES, TOKENS):
        if tokens * heads * size > LARGE:
            continue
        blocks, found = tokens // block + 3, Findings(DEVICE)
        generator = torch.Generator(DEVICE).manual_seed(tokens)
        slots = torch.randperm(blocks * block, generator=generator, device=DEVICE)[:tokens]
        slots[1::5] = -1
        slots[3::7] = blocks * block + 2
        shapes = ((tokens, heads * size), (blocks, block * heads * size))
        rows, room = ([torch.randn(s, generator=generator, device=DEVICE).to(dtype) for _ in range(2)] for s in shapes)
        valid = (slots >= 0) & (slots < blocks * block)
        want = [_written(cache, row, slots, valid, heads * size) for cache, row in zip(room, rows, strict=True)]
        for number, layout in enumerate(("dense", "columns", "padded", "odd stride", "odd offset")):
            given = slots.to(torch.int32 if number % 2 else torch.int64)
            found.case = f"{dtype}, {tokens} tokens, {heads} x {size}, blocks of {block}, {layout}"
            placed = [_in_heads(r, heads, size, layout) for r in rows]
            around = ("columns", "dense", "padded", "odd offset", "odd stride")[number]
            caches = [_in_heads(r, heads, size, around, block) for r in room]
            ops.reshape_and_cache_(*(v for _, v in placed), *(v for _, v in caches), given)
            for (held, _), bits in zip((*placed, *caches), (*rows, *want), strict=True):
                found.add(f"key, value or a cache, {around}, is wrong", held.has(bits))
                found.add("memory beside an argument was written", held.last())
        wrong.extend(found.wrong())
    torch.cuda.empty_cache()
    assert not wrong, f"{len(wrong)} wrong:\n" + "\n".join(wrong[:20])


def _written(cache: Tensor, rows: Tensor, slots: Tensor, valid: Tensor, width: int) -> Tensor:
    """Return the cache with rows in their slots, bit for bit."""
    bits = cache.view(torch.uint8).clone().view(-1, width * cache.element_size())
    bits[slots[valid]] = rows.view(torch.uint8)[valid]
    return bits.view(cache.dtype).view(cache.shape)


def _in_heads(rows: Tensor, heads: int, size: int, layout: str, block: int | None = None) -> tuple[Canaries, Tensor]:
    """Place rows in a layout; return the memory and a view of it with heads, and with places of a block."""
    where = geometry(rows.shape[0], rows.shape[1], layout)
    assert where is not None
    held = Canaries(rows.dtype, where, DEVICE)
    held.put(rows)
    inner = (heads, size) if block is None else (block, heads, size)
    return held, held.x.unflatten(1, inner)
