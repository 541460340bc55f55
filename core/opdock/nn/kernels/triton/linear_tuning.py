"""How products with quantised weights are divided into programs: measured on an H200, pure functions of the sizes."""

from __future__ import annotations

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
    """

    block_m: int
    block_n: int
    block_k: int
    split: int
    stages: int
    num_warps: int


def int4_tiles(rows: int, outputs: int, inputs: int, words: int) -> Tiles:
    """Return the tiles of a product with 4-bit weights, for any number of rows."""
    block_m = 16 if rows <= 16 else 32 if rows <= 32 else 64
    split = _split(outputs, 64, inputs // (4 * words))
    return Tiles(block_m, 64, 0, split, 3, 4)


def scaled_tiles(rows: int, outputs: int, inputs: int) -> Tiles | None:
    """Return the tiles of a product with 8-bit weights; None where torch's product is faster."""
    if rows > 64:
        return None
    block_m = 16 if rows <= 16 else 32 if rows <= 32 else 64
    return Tiles(block_m, 64, 128, _split(outputs, 64, inputs // 128), 4, 4)


def _split(outputs: int, block_n: int, steps: int) -> int:
    """Return how many programs share a place, so that there are about two for each of 132 multiprocessors."""
    places = -(-outputs // block_n)
    split = 1
    while split < 8 and places * split < 200 and steps // (split * 2) >= 2:
        split *= 2
    return split
