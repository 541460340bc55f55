"""Nobody has an advantage by the order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest


@pytest.fixture(scope="module")
def turns(script: Callable[[str], Any]) -> Any:
    return script("turns")


@pytest.mark.parametrize("sides", [2, 3, 5])
def test_each_side_is_at_each_place_and_behind_either_neighbour_equally_often(turns: Any, sides: int) -> None:
    """Over two rounds for each side."""
    names = "abcde"[:sides]
    rounds = [turns.order(names, number) for number in range(2 * sides)]
    assert all(sorted(one) == list(names) for one in rounds)
    places = Counter((name, place) for one in rounds for place, name in enumerate(one))
    assert set(places.values()) == {2} and len(places) == sides * sides
    behind = Counter(pair for one in rounds for pair in pairwise(one))
    assert all(behind[a, b] == behind[b, a] for a, b in behind)
