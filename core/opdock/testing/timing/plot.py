"""The picture of a benchmark: for each op, time and the share of the memory's bandwidth, over bytes moved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from opdock.errors import UnsupportedError
from opdock.testing.timing import units
from opdock.testing.timing.result import TIMED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opdock.testing.timing.result import Point, Result, Times

INSTALL = "pip install 'opdock[bench]'"
NATIVE_COLOUR, COPY_COLOUR = "#222222", "#9a9a9a"
# Okabe and Ito's, which people with any colour vision can tell apart; yellow is left out, it is pale on white.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
MARKERS = "osD^vP*X"
_LOG_BELOW = 25.0  # percent: all shares below it would lie on the axis of a linear panel
_DASHES = ("-", "--", "-.", ":")


class NoPlotError(UnsupportedError):
    """The picture needs a package that is not installed."""


def colours(providers: Sequence[str]) -> dict[str, str]:
    """Return one colour for each provider, the same in every panel; native is dark."""
    others = sorted(set(providers) - {"native"})
    return {"native": NATIVE_COLOUR, **{name: COLOURS[i % len(COLOURS)] for i, name in enumerate(others)}}


def draw(result: Result, file: Path) -> bool:
    """Write the picture as PNG; False, and no file, if nothing was timed.

    Raises: NoPlotError if matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as err:
        raise NoPlotError(f"No picture was written: matplotlib is not installed ({err}).", remedy=INSTALL) from None
    by_op = _by_op(result)
    if not by_op:
        return False
    names = list(dict.fromkeys(p.provider for points in by_op.values() for q in points for p in _timed(q)))
    hidden = sorted({q.hidden for points in by_op.values() for q in points})
    # no pyplot: it would keep the figure, and choose a backend for the whole process
    figure = Figure(
        figsize=(12, 1.9 + 3.4 * len(by_op)), dpi=110, layout=ConstrainedLayoutEngine(h_pad=0.12, w_pad=0.08)
    )
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(by_op), 2, squeeze=False)
    palette, marks = colours(names), {h: MARKERS[i % len(MARKERS)] for i, h in enumerate(hidden)}
    for row, (op, points) in zip(axes, by_op.items(), strict=True):
        _time_panel(row[0], op, points, palette, marks)
        _bandwidth_panel(row[1], op, result, points, palette, marks)
    _legend(figure, palette, names, marks)
    figure.supxlabel(_caption(result), fontsize=8.5, color="#555555")
    figure.savefig(file, facecolor="white")
    return True


def _by_op(result: Result) -> dict[str, list[Point]]:
    found: dict[str, list[Point]] = {}
    for point in result.points:
        if _timed(point):
            found.setdefault(point.op, []).append(point)
    return found


def _timed(point: Point) -> list[Any]:
    return [p for p in point.providers if p.status == TIMED and p.time is not None]


def _lines(points: Sequence[Point], hidden: int) -> dict[str, list[tuple[int, Times]]]:
    """Return each provider's (bytes, times) for one hidden size, by size."""
    found: dict[str, list[tuple[int, Times]]] = {}
    for point in sorted(points, key=lambda p: p.bytes):
        for provider in _timed(point) if point.hidden == hidden else ():
            found.setdefault(provider.provider, []).append((point.bytes, provider.time))
    return found


def _time_panel(axes: Any, op: str, points: Sequence[Point], palette: dict[str, str], marks: dict[int, str]) -> None:
    copies = sorted((p.bytes, p.copy.median) for p in points if p.copy is not None)
    axes.plot(*_columns(copies), color=COPY_COLOUR, linestyle=":", linewidth=1.5, zorder=1)
    for number, (hidden, mark) in enumerate(marks.items()):
        for name, line in _lines(points, hidden).items():
            xs = [size for size, _ in line]
            colour = palette[name]
            axes.fill_between(
                xs, [t.q1 for _, t in line], [t.q3 for _, t in line], color=colour, alpha=0.15, linewidth=0
            )
            axes.plot(xs, [t.median for _, t in line], color=colour, **_look(mark, number))
    axes.set_yscale("log")
    _dress(axes, op, "time of a call (median; band: quartiles)")
    _label_decades(axes)
    axes.yaxis.set_major_formatter(lambda value, _: units.seconds(value))


def _bandwidth_panel(
    axes: Any, op: str, result: Result, points: Sequence[Point], palette: dict[str, str], marks: dict[int, str]
) -> None:
    copies = sorted((p.bytes, 100 * (result.fraction(p, p.copy) or 0.0)) for p in points if p.copy is not None)
    axes.plot(*_columns(copies), color=COPY_COLOUR, linestyle=":", linewidth=1.5, zorder=1)
    best = result.bandwidth()
    by_bytes = {(p.hidden, p.bytes): p for p in points}
    for number, (hidden, mark) in enumerate(marks.items()):
        for name, line in _lines(points, hidden).items():
            shares = [100 * (result.fraction(by_bytes[hidden, size], t) or 0.0) for size, t in line]
            axes.plot([size for size, _ in line], shares, color=palette[name], **_look(mark, number))
    axes.axhline(100, color=COPY_COLOUR, linewidth=0.8)
    if _largest_share(result) < _LOG_BELOW:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, max(108, 1.05 * axes.get_ylim()[1]))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    told = f"{units.rate(best.bytes_per_second)}" if best else "unknown"
    _dress(axes, op, f"memory bandwidth (% of {told})")


def _largest_share(result: Result) -> float:
    """Return the largest share of any provider, in percent."""
    shares = (result.fraction(q, p.time) for q in result.points for p in _timed(q))
    return 100 * max((s for s in shares if s is not None), default=0.0)


def _caption(result: Result) -> str:
    facts = result.circumstances
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    text = f"{facts['date']}   {facts['machine']}   {facts['threads']} thread(s)   {versions}"
    return text.replace("$", r"\$")


def _look(mark: str, number: int) -> dict[str, Any]:
    return {
        "marker": mark,
        "markersize": 5.5,
        "markeredgecolor": "white",
        "markeredgewidth": 0.6,
        "linestyle": _DASHES[number % len(_DASHES)],
        "linewidth": 1.7,
    }


def _label_decades(axes: Any) -> None:
    """Put numbers at 1, 2 and 5 of each power of ten where an axis shows few of them."""
    from matplotlib.ticker import LogLocator

    low, high = axes.get_ylim()
    if high < 1e3 * low:
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))


def _columns(pairs: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in pairs], [y for _, y in pairs]


def _dress(axes: Any, op: str, label: str) -> None:
    axes.set_title(op, loc="left", fontsize=11, fontweight="bold")
    axes.set_xscale("log", base=4)
    axes.set_xlabel("bytes of arguments and results, each once", fontsize=9)
    axes.set_ylabel(label, fontsize=9)
    axes.xaxis.set_major_formatter(lambda value, _: units.size(value))
    axes.xaxis.set_minor_formatter(lambda _value, _: "")
    axes.yaxis.set_minor_formatter(lambda _value, _: "")
    axes.tick_params(labelsize=9)
    axes.grid(visible=True, color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _legend(figure: Any, palette: dict[str, str], names: Sequence[str], marks: dict[int, str]) -> None:
    """Put the legend above all panels, where it covers nothing."""
    from matplotlib.lines import Line2D

    handles: list[Any] = [Line2D([], [], color=palette[n], linewidth=3, label=f" {n}") for n in names]
    handles.append(
        Line2D([], [], color=COPY_COLOUR, linestyle=":", linewidth=2, label="copy of as many bytes (best copy: 100 %)")
    )
    for number, (hidden, mark) in enumerate(marks.items()):
        look = {**_look(mark, number), "linewidth": 1.2}
        handles.append(Line2D([], [], color="#666666", label=f"hidden {hidden}", **look))
    figure.legend(handles=handles, loc="outside upper center", ncols=min(6, len(handles)), frameon=False, fontsize=10)
