"""What the records say of a limit that is missed follows from the figures alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def shortfall(script: Callable[[str], Any]) -> Any:
    return script("shortfall")


def test_nothing_is_said_of_a_limit_that_is_reached(shortfall: Any) -> None:
    """Also at the limit itself."""
    assert shortfall.why(shortfall.Facts(ours=10.0, peer=9.5, need=0.95, launch=9.0)) == ""


def test_it_says_by_how_much(shortfall: Any) -> None:
    """As a ratio and in microseconds: 18 us at 0.9 allow 20."""
    words = shortfall.why(shortfall.Facts(ours=25.0, peer=18.0, need=0.9, launch=1.0))
    assert words.startswith("0.720 of 0.9: 25.0 us where 20.0 are allowed, 5.0 too many. ")


def test_a_change_that_helps_is_named_with_its_part_and_one_within_the_noise_is_not(shortfall: Any) -> None:
    """8 us are missing; one change gains 6, another 1, which is 2 %."""
    facts = shortfall.Facts(
        ours=50.0, peer=42.0, need=1.0, launch=1.0, variants={"with blocks in order": 44.0, "with one warp": 49.0}
    )
    assert shortfall.causes(facts) == [(6.0, "with blocks in order it takes 44.0 us, which is 75% of what is missing")]
    more = shortfall.Facts(ours=50.0, peer=42.0, need=1.0, launch=1.0, variants={"cut otherwise": 40.0})
    assert shortfall.causes(more) == [(10.0, "cut otherwise it takes 40.0 us, which is all that is missing")]


def test_launches_count_where_they_are_a_fifth_of_the_time(shortfall: Any) -> None:
    """Three of 1.5 us in 10, and not in 30."""
    facts = {"peer": 5.0, "need": 1.0, "launch": 1.5, "launches": 3}
    assert shortfall.causes(shortfall.Facts(ours=10.0, **facts)) == [
        (4.5, "3 empty kernels take 4.5 us, 45% of the time")
    ]
    assert shortfall.causes(shortfall.Facts(ours=30.0, **facts)) == []


def test_a_floor_is_named_where_the_kernel_has_reached_it(shortfall: Any) -> None:
    """And the rest is told from the highest floor."""
    facts = shortfall.Facts(ours=100.0, peer=90.0, need=0.95, launch=1.0, read=95.0, product=20.0)
    assert [words for _, words in shortfall.causes(facts)] == [
        "a kernel that only reads the same bytes takes 95.0 us: ours is at that floor"
    ]
    told = "5.0 us lie above the highest floor (reading the same bytes, 95.0 us), of the peer's -5.0"
    assert shortfall.unexplained(facts) == told
    product = shortfall.Facts(ours=100.0, peer=90.0, need=0.95, launch=1.0, read=20.0, product=99.0)
    assert "as many multiplications 99.0 us" in shortfall.causes(product)[0][1]
    below = shortfall.Facts(ours=94.0, peer=80.0, need=0.95, launch=1.0, read=95.0)
    assert shortfall.unexplained(below).startswith("nothing lies above the highest floor")


@pytest.mark.parametrize(
    ("programs", "units", "part"), [(132, 132, 0.0), (64, 128, 0.5), (129, 128, 127 / 256), (None, 128, 0.0)]
)
def test_idle_multiprocessors(shortfall: Any, programs: int | None, units: int, part: float) -> None:
    """The last round of programs."""
    assert shortfall.idle_part(programs, units) == pytest.approx(part)


def test_causes_come_with_the_largest_first(shortfall: Any) -> None:
    """Half of the multiprocessors outweigh the launch."""
    facts = shortfall.Facts(ours=10.0, peer=5.0, need=1.0, launch=2.5, programs=64, units=128)
    assert [time for time, _ in shortfall.causes(facts)] == [5.0, 2.5]
    assert "64 programs leave 50% of the time of 128 multiprocessors unused;" in shortfall.why(facts)
    more = shortfall.Facts(ours=10.0, peer=5.0, need=1.0, launch=0.1, programs=192, units=128)
    assert "192 programs leave 25% of the time of 128 multiprocessors unused in the last round" in shortfall.why(more)


def test_it_says_so_where_no_figure_explains_it_and_names_only_what_was_measured(shortfall: Any) -> None:
    """With what lies above the floors."""
    words = shortfall.why(shortfall.Facts(ours=30.0, peer=20.0, need=1.0, launch=1.0, read=15.0))
    assert "neither the launch nor memory alone accounts for it; 15.0 us lie above the highest floor" in words
    words = shortfall.why(shortfall.Facts(ours=30.0, peer=20.0, need=1.0, launch=1.0))
    assert "the launch alone does not account for it; 29.0 us lie above the highest floor (an empty kernel" in words
    facts = shortfall.Facts(
        ours=30.0, peer=20.0, need=1.0, launch=1.0, read=9.0, product=8.0, loads=7.0, programs=128, units=128
    )
    named = "neither the launch nor memory nor the product unit nor loads from the cache nor idle multiprocessors alone"
    assert named in shortfall.why(facts)


def test_reading_and_multiplying_are_set_beside_the_time(shortfall: Any) -> None:
    """One after the other they take longer than ours, or ours takes longer still."""
    facts = {"peer": 8.0, "need": 1.0, "launch": 1.0, "read": 6.0}
    words = shortfall.together(shortfall.Facts(ours=10.0, product=5.5, **facts))
    assert words.startswith("reading the same bytes (6.0 us) and then multiplying (5.5 us, at the rate")
    assert words.endswith("would take 11.5 us: ours hides 1.5 us")
    assert shortfall.together(shortfall.Facts(ours=10.0, product=1.0, **facts)).endswith("3.0 us of ours are neither")
    assert shortfall.together(shortfall.Facts(ours=10.0, **facts)) == ""
    assert words in shortfall.why(shortfall.Facts(ours=10.0, product=5.5, **facts))


def test_loads_from_the_cache_are_a_floor(shortfall: Any) -> None:
    """Of all programs together."""
    facts = shortfall.Facts(ours=30.0, peer=20.0, need=1.0, launch=1.0, read=9.0, loads=28.0)
    assert [words for _, words in shortfall.causes(facts)] == [
        "loading the tiles of all its programs from the cache takes 28.0 us: ours is at that floor"
    ]
    assert "2.0 us lie above the highest floor (loading the tiles" in shortfall.unexplained(facts)
    assert facts.times() == {"launch": 1.0, "read": 9.0, "loads": 28.0}


def test_where_ours_is_the_very_peer_the_difference_is_called_noise_and_is_a_miss_all_the_same(shortfall: Any) -> None:
    """By how much the peer differs from itself is said beside it, and nothing that is no cause."""
    facts = shortfall.Facts(
        ours=102.0, peer=100.0, need=1.0, launch=1.0, read=50.0, product=99.0, same=100.0, noise=0.012
    )
    assert shortfall.why(facts) == (
        "0.980 of 1: 102.0 us where 100.0 are allowed, 2.0 too many. ours is torch's own product here: the difference "
        "of 2.0% is the run's noise; timed twice in this run, the peer differs from itself by 1.2%."
    )


def test_where_ours_is_another_product_of_torchs_than_the_peer_both_are_named(shortfall: Any) -> None:
    """That is no noise."""
    words = shortfall.why(shortfall.Facts(ours=14.4, peer=10.8, need=1.0, launch=1.0, same=14.3, noise=0.01))
    assert "which takes 14.3 us where torch is asked for it" in words
    assert "with another of torch's, which takes 10.8 us; timed twice" in words
    assert "noise" not in words


def test_less_than_the_peer_differs_from_itself_is_called_so(shortfall: Any) -> None:
    """1 us of 100 is missing: as much as a difference of 2 %, more than one of 0.5 %."""
    facts = {"ours": 101.0, "peer": 100.0, "need": 1.0, "launch": 1.0}
    assert [words for _, words in shortfall.causes(shortfall.Facts(noise=0.02, **facts))] == [
        "the peer, timed twice, differs from itself by 2.0%: as much as is missing"
    ]
    assert shortfall.causes(shortfall.Facts(noise=0.005, **facts)) == []


def test_reasons_are_added_to_a_record(shortfall: Any, tmp_path: Path) -> None:
    """To both files, whose rest stays."""
    (tmp_path / "x.json").write_text('{"rows": [1]}\n', encoding="utf-8")
    (tmp_path / "x.txt").write_text("table\n", encoding="utf-8")
    shortfall.append(tmp_path, "x", {"a / b": "0.9 of 1"}, ("left out: none",))
    data = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    assert data == {"rows": [1], "missed": {"a / b": "0.9 of 1"}, "notes": ["left out: none"]}
    assert (tmp_path / "x.txt").read_text(encoding="utf-8") == "table\n\nMISSED a / b\n    0.9 of 1\nleft out: none\n"
    assert shortfall.told({}) == "No limit is missed.\n"
