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
        variants: times of ours with one thing changed that may be a cause, each by the words that say what.
        loads: of loading the tiles of all programs from the cache, at the rate measured in this run.
        same: where ours calls an operation of torch's, the time of that operation as a side of its own; it is ``peer``
            where that is the very operation that ours is compared with.
        noise: by which part of it the peer, timed twice in this run, differs from itself.
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
    loads: float | None = None
    same: float | None = None
    noise: float | None = None

    def times(self) -> dict[str, float]:
        """Return the floors and variants that were measured, by name."""
        floors = {"launch": self.launch, "read": self.read, "product": self.product, "loads": self.loads}
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
    if f.noise is not None and over <= f.noise * f.peer / f.need:
        found.append((over, f"the peer, timed twice, differs from itself by {f.noise:.1%}: as much as is missing"))
    started = f.launch * f.launches
    if started > 0.2 * f.ours:
        many = "an empty kernel takes" if f.launches == 1 else f"{f.launches} empty kernels take"
        found.append((started, f"{many} {started:.1f} us, {started / f.ours:.0%} of the time"))
    for floor, words in (
        (f.read, "a kernel that only reads the same bytes takes"),
        (f.product, "torch's fastest product would need for as many multiplications"),
        (f.loads, "loading the tiles of all its programs from the cache takes"),
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


def together(f: Facts) -> str:
    """Return what reading and multiplying would take one after the other, next to ours; "" where one is not known."""
    if f.read is None or f.product is None:
        return ""
    both = f.read + f.product
    rest = f"{f.ours - both:.1f} us of ours are neither" if f.ours > both else f"ours hides {both - f.ours:.1f} us"
    return (
        f"reading the same bytes ({f.read:.1f} us) and then multiplying ({f.product:.1f} us, at the rate of torch's "
        f"fastest product) would take {both:.1f} us: {rest}"
    )


def unexplained(f: Facts) -> str:
    """Return what lies above the highest floor that was measured."""
    floors = {
        "an empty kernel": f.launch * f.launches,
        "reading the same bytes": f.read or 0.0,
        "the multiplications at the rate of torch's fastest product": f.product or 0.0,
        "loading the tiles of all programs from the cache": f.loads or 0.0,
    }
    name = max(floors, key=lambda n: floors[n])
    rest = f.ours - floors[name]
    if rest <= 0:
        return f"nothing lies above the highest floor ({name}, {floors[name]:.1f} us)"
    theirs = f.peer - floors[name]
    return f"{rest:.1f} us lie above the highest floor ({name}, {floors[name]:.1f} us), of the peer's {theirs:.1f}"


def none_of_them(f: Facts) -> str:
    """Return that no cause was found, naming only what was measured."""
    measured = {
        "memory": f.read,
        "the product unit": f.product,
        "loads from the cache": f.loads,
        "idle multiprocessors": f.programs,
    }
    names = ["the launch", *(name for name, value in measured.items() if value is not None)]
    if len(names) == 1:
        return f"{names[0]} alone does not account for it"
    return f"neither {' nor '.join(names)} alone accounts for it"


def itself(f: Facts) -> str:
    """Return what a miss means where ours calls torch's own operation."""
    twice = "" if f.noise is None else f"; timed twice in this run, the peer differs from itself by {f.noise:.1%}"
    if f.same == f.peer:
        return (
            f"ours is torch's own product here: the difference of {abs(f.ours / f.peer - 1):.1%} is the run's noise"
            + twice
        )
    return (
        f"ours is torch's own product here, which takes {f.same:.1f} us where torch is asked for it, and is compared "
        f"with another of torch's, which takes {f.peer:.1f} us" + twice
    )


def why(f: Facts) -> str:
    """Return by how much a limit is missed and why, as one line; "" where it is reached."""
    if f.peer >= f.need * f.ours:
        return ""
    if f.same is not None:
        return f"{by_how_much(f)}. {itself(f)}."
    told = [words for _, words in causes(f)] or [none_of_them(f)]
    return f"{by_how_much(f)}. " + "; ".join(words for words in [*told, together(f), unexplained(f)] if words) + "."


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
