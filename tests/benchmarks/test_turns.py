"""Nobody has an advantage by the order."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "turns.py"


@pytest.fixture(scope="module")
def turns() -> Any:
    """Load the script, which is no package's."""
    spec = importlib.util.spec_from_file_location("opdock_benchmarks_turns", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
