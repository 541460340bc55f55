"""opdock_rocm.gpus: what follows from the name of an architecture."""

from __future__ import annotations

import pytest

from opdock_rocm.gpus import Facts, capability, gfx_of, in_order, is_fnuz, multiplies_fp8


@pytest.mark.parametrize(
    ("gfx", "version", "pair", "fnuz", "fp8"),
    [
        ("gfx90a", 90010, (9, 0), False, False),
        ("gfx942", 90402, (9, 4), True, True),
        ("gfx950", 90500, (9, 5), False, True),
        ("gfx1100", 110000, (11, 0), False, False),
        ("gfx1201", 120001, (12, 0), False, True),
    ],
)
def test_an_architecture_says_its_capability_and_its_8_bit_floats(
    gfx: str, version: int, pair: tuple[int, int], fnuz: bool, fp8: bool
) -> None:
    assert gfx_of(version) == gfx
    assert (capability(gfx), is_fnuz(gfx), multiplies_fp8(gfx)) == (pair, fnuz, fp8)


def test_what_is_no_architecture_has_no_capability() -> None:
    assert capability("") is None
    assert capability("navi31") is None
    assert gfx_of(0) == ""


def test_gpus_of_amdsmi_are_put_in_the_order_of_the_kernels_driver() -> None:
    named = (Facts("one", "GPU-1"), Facts("two", "GPU-2"))
    counted = (Facts("", "GPU-2", gfx="gfx942"), Facts("", "GPU-1", gfx="gfx942"))
    assert [facts.name for facts in in_order(named, counted)] == ["two", "one"]


@pytest.mark.parametrize("counted", [(), (Facts("", "GPU-2"),), (Facts("", "GPU-2"), Facts("", "GPU-3"))])
def test_other_gpus_leave_the_order_as_it_is(counted: tuple[Facts, ...]) -> None:
    named = (Facts("one", "GPU-1"), Facts("two", "GPU-2"))
    assert in_order(named, counted) == named
    nameless = (Facts("one"), Facts("two"))
    assert in_order(nameless, counted) == nameless
