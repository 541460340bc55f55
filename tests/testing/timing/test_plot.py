"""The picture."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from opdock.testing.timing import plot
from opdock.testing.timing.result import DECLINED, TIMED, Point, ProviderResult, Result, Times


def result(*providers: ProviderResult) -> Result:
    times = Times(1e-3, 0.9e-3, 1.1e-3, 5)
    facts = {"date": "2026-01-01", "machine": "m", "threads": 1, "versions": {"torch": "2"}}
    return Result(facts, (), 1 << 20, times, (Point("op", 1, 64, "float32", 4096, providers, times),))


TIMES = Times(2e-3, 1.9e-3, 2.1e-3, 5)


def test_a_picture_is_written_as_png(tmp_path: Path) -> None:
    """Also with a provider whose name would be mathematics, and without pyplot."""
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    file = tmp_path / "bench.png"
    timed = [ProviderResult(name, "", TIMED, time=TIMES) for name in ("native", "_hidden", "vendor")]
    assert plot.draw(result(*timed), file)
    assert file.read_bytes().startswith(b"\x89PNG") and "matplotlib.pyplot" not in sys.modules


def test_nothing_is_drawn_of_nothing(tmp_path: Path) -> None:
    """And no file is left."""
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    assert not plot.draw(result(ProviderResult("native", "", DECLINED, "no")), tmp_path / "bench.png")
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(plot.NoPlotError, match=r"pip install 'opdock\[bench\]'"):
        plot.draw(result(), tmp_path / "bench.png")


def test_a_provider_has_one_colour_wherever_it_is_shown() -> None:
    """By name, not by order; native is dark."""
    assert plot.colours(["b", "native", "a"]) == plot.colours(["a", "b", "native"])
    assert plot.colours(["a"])["native"] == plot.NATIVE_COLOUR
    assert len(set(plot.colours(["a", "b", "c", "d", "e", "f"]).values())) == 7
