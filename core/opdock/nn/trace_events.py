"""From the events of a profiler's trace to a table: what each op called, launched and took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Event: TypeAlias = Mapping[str, Any]
"""An event of the Chrome trace format: ``name``, ``cat``, ``ts`` and ``dur`` in microseconds, ``tid``, ``args``."""

RANGE, HOST_OP, KERNEL, COPIES = "user_annotation", "cpu_op", "kernel", ("gpu_memcpy", "gpu_memset")


@dataclass(frozen=True, order=True)
class Key:
    """What a range stands for.

    Args:
        level: ``layer`` for an op class, ``ir`` for an IR op, ``outside`` for the code around them.
        op: registered name, "" outside.
        served_by: class or provider, "" outside.
        method: that a CustomOp bound, ``forward`` for other layers, else "".
    """

    level: Literal["ir", "layer", "outside"]
    op: str = ""
    served_by: str = ""
    method: str = ""

    def label(self) -> str:
        """Return the name of the range in the trace."""
        return f"{self.level} {self.op} [{self.served_by}{'.' if self.method else ''}{self.method}]"


OUTSIDE = Key("outside")


@dataclass
class TraceRow:
    """What one op did in a step; what is inside another op counts there alone.

    Args:
        key: the op and what served it.
        calls: number of calls, 0 outside.
        kernels: launched on the device; without device activities, ops that torch dispatched.
        copies: copies and fills of memory on the device.
        host_us: microseconds on the host, under the profiler, which adds to each op.
        device_us: microseconds of its kernels and copies; None without device activities.
        kernel_names: name of a kernel (or op) to how often.
    """

    key: Key
    calls: int = 0
    kernels: int = 0
    copies: int = 0
    host_us: float = 0.0
    device_us: float | None = None
    kernel_names: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Gap:
    """A time in which the device had nothing to do.

    Args:
        us: its length in microseconds.
        before: the kernel that it waited for.
        op: the op that launched that kernel, "" outside of any.
    """

    us: float
    before: str
    op: str


@dataclass(frozen=True)
class Timeline:
    """The device from the first kernel of a step to the end of the last one.

    Args:
        span_us: its length in microseconds.
        busy_us: of it, with a kernel or copy at work.
        gaps: number of times without.
        longest: the longest of these, the longest first.
    """

    span_us: float
    busy_us: float
    gaps: int
    longest: tuple[Gap, ...]


@dataclass(frozen=True)
class StepEvents:
    """One step: its rows, in the order of the first call, and the device's timeline (None without activities)."""

    rows: tuple[TraceRow, ...]
    timeline: Timeline | None


def read_step(events: Sequence[Event], step: str, labels: Mapping[str, Key], *, device: bool) -> StepEvents:
    """Return what happened in a step.

    A kernel belongs to the innermost range in which the call that launched it was made; the trace links the two by a
    correlation number.

    Args:
        events: of the whole trace.
        step: name of the range around the step.
        labels: the ranges to tell apart, by their names in the trace.
        device: whether the profiler recorded the device; without it, ops that torch dispatched are counted.
    """
    whole = next((e for e in events if e.get("cat") == RANGE and e["name"] == step), None)
    if whole is None:
        return StepEvents((), None)
    start, end = whole["ts"], whole["ts"] + whole["dur"]
    inside = [e for e in events if e.get("ph") == "X" and start <= e["ts"] < end and e is not whole]
    rows: dict[Key, TraceRow] = {}
    launched_by = _host(inside, whole, labels, rows, count_ops=not device)
    if not device:
        return StepEvents(_told(rows), None)
    work = []
    for event in events:  # a kernel may run when the host has left the step
        if event.get("cat") == KERNEL or event.get("cat") in COPIES:
            key = launched_by.get(event.get("args", {}).get("correlation"))
            if key is not None:
                work.append((event, key))
    for row in rows.values():
        row.device_us = 0.0
    for event, key in work:
        row = _row(rows, key)
        row.device_us = (row.device_us or 0.0) + event["dur"]
        _name(row, event)
        if event["cat"] == KERNEL:
            row.kernels += 1
        else:
            row.copies += 1
    return StepEvents(_told(rows), _timeline(work))


def _host(
    inside: Iterable[Event],
    whole: Event,
    labels: Mapping[str, Key],
    rows: dict[Key, TraceRow],
    *,
    count_ops: bool,
) -> dict[Any, Key]:
    """Fill in calls and host time, and return which op made the call of each correlation number."""
    _row(rows, OUTSIDE).host_us += whole["dur"]
    launched_by: dict[Any, Key] = {}
    stack: list[tuple[float, Key]] = [(whole["ts"] + whole["dur"], OUTSIDE)]
    op_ends = float("-inf")
    for event in sorted(inside, key=lambda e: (e["ts"], -e["dur"])):
        at, ends = event["ts"], event["ts"] + event["dur"]
        while len(stack) > 1 and at >= stack[-1][0]:
            stack.pop()
        around, category = stack[-1][1], event.get("cat")
        if category == RANGE and event["tid"] == whole["tid"] and event["name"] in labels:
            key = labels[event["name"]]
            row = _row(rows, key)
            row.calls += 1
            row.host_us += event["dur"]
            _row(rows, around).host_us -= event["dur"]
            stack.append((ends, key))
        elif category == HOST_OP:
            if count_ops and at >= op_ends and event["tid"] == whole["tid"] and _is_op(event["name"]):
                op_ends = ends
                row = _row(rows, around)
                row.kernels += 1
                _name(row, event)
        elif category not in (KERNEL, *COPIES):
            number = event.get("args", {}).get("correlation")
            if number is not None:
                launched_by[number] = around
    return launched_by


def _name(row: TraceRow, event: Event) -> None:
    row.kernel_names[event["name"]] = row.kernel_names.get(event["name"], 0) + 1


def _is_op(name: str) -> bool:
    return not name.startswith("profiler::")


def _timeline(work: Sequence[tuple[Event, Key]]) -> Timeline:
    gaps: list[Gap] = []
    first = busy_until = None
    for event, key in sorted(work, key=lambda w: w[0]["ts"]):
        at, ends = event["ts"], event["ts"] + event["dur"]
        if first is None or busy_until is None:
            first, busy_until = at, ends
            continue
        if at > busy_until:
            gaps.append(Gap(round(at - busy_until, 3), event["name"], key.op))
        busy_until = max(busy_until, ends)
    if first is None or busy_until is None:
        return Timeline(0.0, 0.0, 0, ())
    span, idle = busy_until - first, sum(gap.us for gap in gaps)
    longest = sorted(gaps, key=lambda g: -g.us)[:3]
    return Timeline(round(span, 3), round(span - idle, 3), len(gaps), tuple(longest))


def _row(rows: dict[Key, TraceRow], key: Key) -> TraceRow:
    return rows.setdefault(key, TraceRow(key))


def _told(rows: Mapping[Key, TraceRow]) -> tuple[TraceRow, ...]:
    """Return the rows with times rounded to the nanosecond: IR ops, then layers, then the rest."""
    order = {"ir": 0, "layer": 1, "outside": 2}
    for row in rows.values():
        row.host_us = round(row.host_us, 3)
        row.device_us = None if row.device_us is None else round(row.device_us, 3)
    return tuple(sorted(rows.values(), key=lambda r: (order[r.key.level], r.key)))
