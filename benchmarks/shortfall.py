"""Why a kernel falls short of a limit, in words that follow from what the same run measured; pure functions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SEEN = 0.03
"""A change below this part of the time is within the noise of a run."""

NEAR = 1.15
"""A time of at most so many times a floor is that floor's."""


@dataclass(frozen=True)
class Facts:
    """What one run measured around one figure; times in microseconds of one call.

    Attributes:
        ours: of the kernel.
        peer: of what it is compared with.
        need: the ratio peer / ours that was to be reached.
        launch: of an empty kernel in the same kind of graph.
        launches: kernels that a call of ours starts.
        read: of a kernel that only reads the same bytes, and of all that comes before and after it in a graph.
        product: of the same multiplications at the rate of torch's fastest product in this run.
        programs: how many programs ours starts.
        units: multiprocessors of the device.
        variants: times of ours with one thing changed, each by the words that say what.
    """

    ours: float
    peer: float
    need: float
    launch: float
    launches: int = 1
    read: float | None = None
    product: float | None = None
    programs: int | None = None
    units: int = 0
    variants: Mapping[str, float] = field(default_factory=dict)

    def times(self) -> dict[str, float]:
        """Return the floors and variants that were measured, by name."""
        floors = {"launch": self.launch, "read": self.read, "product": self.product}
        return {name: time for name, time in floors.items() if time is not None} | dict(self.variants)


def by_how_much(f: Facts) -> str:
    """Return by how much a ratio misses its limit, as a ratio and in time."""
    allowed = f.peer / f.need
    return (
        f"{f.peer / f.ours:.3f} of {f.need:g}: {f.ours:.1f} us where {allowed:.1f} are allowed, "
        f"{f.ours - allowed:.1f} too many"
    )


def causes(f: Facts) -> list[tuple[float, str]]:
    """Return (microseconds it accounts for, words) of each cause that the figures show, the largest first."""
    over = f.ours - f.peer / f.need
    found = []
    for words, time in f.variants.items():
        gain = f.ours - time
        if gain > SEEN * f.ours:
            enough = "all that is missing" if gain >= over else f"{gain / over:.0%} of what is missing"
            found.append((gain, f"{words} it takes {time:.1f} us, which is {enough}"))
    started = f.launch * f.launches
    if started > 0.2 * f.ours:
        many = "an empty kernel takes" if f.launches == 1 else f"{f.launches} empty kernels take"
        found.append((started, f"{many} {started:.1f} us, {started / f.ours:.0%} of the time"))
    for floor, words in (
        (f.read, "a kernel that only reads the same bytes takes"),
        (f.product, "torch's fastest product would need for as many multiplications"),
    ):
        if floor is not None and f.ours <= NEAR * floor:
            found.append((floor, f"{words} {floor:.1f} us: ours is at that floor"))
    idle = idle_part(f.programs, f.units)
    if idle > 0.1:
        when = " in the last round" if (f.programs or 0) > f.units else ""
        words = f"{f.programs} programs leave {idle:.0%} of the time of {f.units} multiprocessors unused{when}"
        found.append((idle * f.ours, words))
    return sorted(found, reverse=True)


def idle_part(programs: int | None, units: int) -> float:
    """Return which part of the multiprocessors' time is lost as the last round is not full, one program at a time."""
    if not programs or not units:
        return 0.0
    rounds = math.ceil(programs / units)
    return 1.0 - programs / (rounds * units)


def unexplained(f: Facts) -> str:
    """Return what lies above the highest floor that was measured."""
    floors = {
        "an empty kernel": f.launch * f.launches,
        "reading the same bytes": f.read or 0.0,
        "the multiplications at the rate of torch's fastest product": f.product or 0.0,
    }
    name = max(floors, key=lambda n: floors[n])
    rest = f.ours - floors[name]
    if rest <= 0:
        return f"nothing lies above the highest floor ({name}, {floors[name]:.1f} us)"
    theirs = f.peer - floors[name]
    return f"{rest:.1f} us lie above the highest floor ({name}, {floors[name]:.1f} us), of the peer's {theirs:.1f}"


def why(f: Facts) -> str:
    """Return by how much a limit is missed and why, as one line; "" where it is reached."""
    if f.peer >= f.need * f.ours:
        return ""
    told = [words for _, words in causes(f)]
    if not told:
        told = ["neither the launch, nor memory, nor the product unit, nor idle multiprocessors account for it"]
    return f"{by_how_much(f)}. " + "; ".join([*told, unexplained(f)]) + "."


def append(folder: Path, name: str, reasons: Mapping[str, str], notes: tuple[str, ...] = ()) -> None:
    """Add to a written record why its limits are missed, and what was left out.

    Args:
        folder: where ``record.write`` wrote NAME.json and NAME.txt, which are changed.
        name: of the record.
        reasons: of each row that misses its limit, by its words.
        notes: on the run.
    """
    path = folder / f"{name}.json"
    data = json.loads(path.read_text(encoding="utf-8")) | {"missed": dict(reasons), "notes": list(notes)}
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    with (folder / f"{name}.txt").open("a", encoding="utf-8") as text:
        text.write("\n" + told(reasons, notes))


def told(reasons: Mapping[str, str], notes: tuple[str, ...] = ()) -> str:
    """Return the same as text, which says so where nothing is missed."""
    lines = [f"MISSED {what}\n    {words}" for what, words in reasons.items()] or ["No limit is missed."]
    return "\n".join([*lines, *notes]) + "\n"
