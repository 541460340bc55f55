"""How products with quantised weights are divided into programs: measured on an H200, pure functions of the sizes."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple


class Tiles(NamedTuple):
    """One way to divide a product.

    Attributes:
        block_m: rows of a program.
        block_n: outputs of a program.
        block_k: inputs of a step; the 4-bit kernel's follows from its words.
        split: programs that share the inputs of one place.
        stages: steps whose loads are in flight.
        num_warps: of a program.
        step: words of a row that the 4-bit kernel takes at a time; 0: all whose codes lie side by side.
        wide: whether the 4-bit kernel copies 16 bytes of weights at once, not 8.
        dependent: whether the kernel is started before the one ahead of it on its stream has ended, where the GPU can.
        row: whether it is the 4-bit kernel for one row; then block_k are its words of a row, in steps.
    """

    block_m: int
    block_n: int
    block_k: int
    split: int
    stages: int
    num_warps: int
    step: int = 0
    wide: bool = False
    dependent: bool = False
    row: bool = False


MULTIPROCESSORS = 132
"""Of the GPU that the figures were measured on."""


BEST_INT4: dict[tuple[bool, int], Tiles] = {
    (False, 1): Tiles(1, 4, 512, 1, 1, 2, dependent=True, row=True),
    (False, 16): Tiles(16, 64, 0, 4, 3, 4, step=128, wide=True, dependent=True),
    (False, 32): Tiles(32, 64, 0, 4, 4, 4, step=64, wide=True, dependent=True),
    (True, 1): Tiles(8, 64, 0, 1, 3, 4, wide=True, dependent=True),
    (True, 16): Tiles(16, 64, 0, 1, 3, 4, step=128, wide=True, dependent=True),
    (True, 32): Tiles(32, 128, 0, 2, 4, 4, step=64, wide=True, dependent=True),
}
"""For groups of 128, by whether 64 outputs each give every multiprocessor a program, and the most rows."""

BEST_SCALED: dict[tuple[bool, int], Tiles | None] = {
    (False, 16): Tiles(16, 64, 256, 2, 5, 4, dependent=True),
    (False, 32): Tiles(32, 64, 256, 2, 5, 4, dependent=True),
    (False, 64): Tiles(64, 64, 256, 2, 5, 4, dependent=True),
    (False, 256): None,
    (False, 4096): None,
    (True, 16): Tiles(16, 64, 256, 1, 3, 4),
    (True, 32): Tiles(32, 64, 256, 1, 3, 4),
    (True, 64): Tiles(64, 64, 256, 1, 3, 4, dependent=True),
    (True, 256): None,
    (True, 4096): None,
}
"""For products with scales of rows, likewise; None: torch's product."""

BEST_ONE_SCALE: dict[tuple[bool, int], Tiles | None] = {
    (False, 16): Tiles(16, 64, 256, 2, 5, 4, dependent=True),
    (False, 32): Tiles(32, 64, 256, 2, 5, 4, dependent=True),
    (True, 16): Tiles(16, 64, 128, 1, 5, 4, dependent=True),
    (True, 32): Tiles(32, 64, 256, 1, 3, 4),
    (True, 64): Tiles(64, 64, 256, 1, 3, 4, dependent=True),
}
"""For products with one scale for each side, likewise."""

LONG = 2048
"""Inputs from which these hold: rows shorter than that were not measured."""


def int4_tiles(rows: int, outputs: int, inputs: int, words: int, *, own: bool = True) -> Tiles:
    """Return the tiles of a product with 4-bit weights, for any number of rows.

    Args:
        rows: of x.
        outputs: of the weight.
        inputs: of both.
        words: how far the codes of a word lie apart.
        own: whether each code of a word has a group of its own.
    """
    if own and words == 128 and inputs >= LONG:
        most = _most(BEST_INT4, rows, outputs)
        if most is not None:
            return BEST_INT4[most]
    block_m = 8 if rows <= 8 else 16 if rows <= 16 else 32 if rows <= 32 else 64
    places = -(-outputs // 64)
    split = 1 if places >= MULTIPROCESSORS else _split(places, inputs // (4 * words))
    stages = 3 if split == 1 and block_m <= 16 else 2
    return Tiles(block_m, 64, 0, split, stages, 4)


def scaled_tiles(rows: int, outputs: int, inputs: int, *, one_scale: bool) -> Tiles | None:
    """Return the tiles of a product with 8-bit weights; None where torch's product is faster.

    Args:
        rows: of x.
        outputs: of the weight.
        inputs: of both.
        one_scale: whether x and the weight have one scale each, for which torch's product has a fast path.
    """
    table = BEST_ONE_SCALE if one_scale else BEST_SCALED
    most = _most(table, rows, outputs) if inputs >= LONG else None
    if most is not None:
        return table[most]
    places = -(-outputs // 64)
    many = places >= MULTIPROCESSORS
    if rows > 64 or (one_scale and not many):
        return None
    block_m = 16 if rows <= 16 else 32 if rows <= 32 else 64
    if inputs < 512:
        return Tiles(block_m, 64, 128, 1, 3, 4)
    if many:
        return Tiles(block_m, 64, 256, 1, 3, 4) if rows <= 32 else Tiles(block_m, 64, 128, 1, 5, 4)
    return Tiles(block_m, 64, 256, 2, 5, 4)


INVARIANT_INT4, INVARIANT_SCALED = Tiles(16, 64, 0, 1, 2, 4), Tiles(16, 64, 128, 1, 4, 4)
"""The tiles for any number of rows where a row's bits must not depend on the rows beside it."""


def _most(table: Collection[tuple[bool, int]], rows: int, outputs: int) -> tuple[bool, int] | None:
    """Return the key with the fewest rows that are enough."""
    many = -(-outputs // 64) >= MULTIPROCESSORS
    return min((key for key in table if key[0] == many and rows <= key[1]), default=None)


def _split(places: int, steps: int) -> int:
    """Return how many programs share a place, so that there are about two for each multiprocessor."""
    split = 1
    while split < 4 and places * split < MULTIPROCESSORS * 1.5 and steps // (split * 2) >= 2:
        split *= 2
    return split
