"""Which tiles a product gets: pure functions of its sizes."""

from __future__ import annotations

import pytest

from opdock.nn.kernels.triton import linear_tuning
from opdock.nn.kernels.triton.linear_tuning import Tiles, int4_tiles, scaled_tiles

ONE, FEW, MORE = Tiles(1, 8, 1024, 1, 1, 4, row=True), Tiles(16, 64, 0, 2, 4, 4), Tiles(32, 128, 0, 1, 3, 4)


def test_the_entry_with_the_fewest_rows_that_are_enough_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the last one, and where there is none for so many outputs, the formula."""
    monkeypatch.setattr(linear_tuning, "BEST_INT4", {})
    beyond, few = int4_tiles(33, 14336, 4096, 128), int4_tiles(16, 4096, 4096, 128)
    monkeypatch.setattr(linear_tuning, "BEST_INT4", {(True, 32): MORE, (True, 1): ONE, (True, 16): FEW})
    found = [int4_tiles(rows, 14336, 4096, 128) for rows in (1, 2, 16, 17, 32, 33)]
    assert found == [ONE, FEW, FEW, MORE, MORE, beyond]
    assert int4_tiles(16, 4096, 4096, 128) == few


@pytest.mark.parametrize(("inputs", "words", "own"), [(1024, 128, True), (4096, 64, True), (4096, 128, False)], ids=str)
def test_the_entries_hold_for_long_rows_and_groups_of_128_alone(
    monkeypatch: pytest.MonkeyPatch, inputs: int, words: int, *, own: bool
) -> None:
    """The kernel of one row cannot do the others."""
    formula = int4_tiles(1, 14336, inputs, words, own=own)
    monkeypatch.setattr(linear_tuning, "BEST_INT4", {(True, 1): ONE})
    assert int4_tiles(1, 14336, inputs, words, own=own) == formula
    assert not formula.row


def test_an_entry_may_send_a_product_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """One scale in all has a table of its own."""
    single = scaled_tiles(16, 14336, 4096, one_scale=True)
    assert scaled_tiles(16, 14336, 4096, one_scale=False) is not None
    monkeypatch.setattr(linear_tuning, "BEST_SCALED", {(True, 16): None, (True, 32): MORE})
    assert scaled_tiles(16, 14336, 4096, one_scale=False) is None
    assert scaled_tiles(17, 14336, 4096, one_scale=False) == MORE
    assert scaled_tiles(16, 14336, 4096, one_scale=True) == single
    monkeypatch.setattr(linear_tuning, "BEST_ONE_SCALE", {(True, 16): FEW})
    assert scaled_tiles(16, 14336, 4096, one_scale=True) == FEW


@pytest.mark.parametrize("rows", [1, 8, 16, 32, 64])
@pytest.mark.parametrize("outputs", [64, 4096, 14336])
@pytest.mark.parametrize("inputs", [512, 4096])
def test_no_program_is_without_a_step(rows: int, outputs: int, inputs: int) -> None:
    """Of 4-bit products, by the formula and as entered."""
    tiles = int4_tiles(rows, outputs, inputs, 128)
    assert tiles.row or tiles.split <= inputs // (4 * min(tiles.step or 128, 128))
