"""What a benchmark finds out, as data."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

SCHEMA = "opdock.bench/1"
TIMED, DECLINED, FAILED, WRONG = "timed", "declined", "failed", "wrong"
"""Of a provider: measured; it takes no such arguments or cannot run here; it raised; its results are not native's."""


@dataclass(frozen=True)
class Times:
    """The times of one call, in seconds.

    Args:
        median: half of the samples are shorter.
        q1, q3: a quarter, three quarters of them are; ``q3 - q1`` is the interquartile range.
        samples: number of samples; on the CPU each is a mean over a block of calls.
    """

    median: float
    q1: float
    q3: float
    samples: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Times:
        """Return the summary of at least one sample."""
        if len(seconds) == 1:
            return cls(seconds[0], seconds[0], seconds[0], 1)
        q1, median, q3 = statistics.quantiles(seconds, n=4, method="inclusive")
        return cls(median, q1, q3, len(seconds))

    @property
    def spread(self) -> float:
        """The interquartile range over the median, no unit."""
        return (self.q3 - self.q1) / self.median if self.median else 0.0


@dataclass(frozen=True)
class ProviderResult:
    """What became of one provider at one point.

    Args:
        provider: its name.
        distribution: name and version of the package that registered it, "" for the host's own.
        status: one of ``TIMED``, ``DECLINED``, ``FAILED``, ``WRONG``.
        reason: why it was not timed, or "".
        inplace: whether it wrote into its activations, as ``maybe_inplace`` lets it.
        time: of a call, on the device's clock; None unless timed.
        host_time: until a call has returned on the host, where the device has a clock of its own.
    """

    provider: str
    distribution: str
    status: str
    reason: str = ""
    inplace: bool = False
    time: Times | None = None
    host_time: Times | None = None


@dataclass(frozen=True)
class Point:
    """One op at one size.

    Args:
        op: name of the IR op.
        tokens, hidden: what its input generator was asked for; 0 where no input could be made.
        dtype: of the activation, without ``torch.``.
        bytes: of the op's arguments and results, each counted once; views of one memory count as they are long.
        providers: one entry for every registered provider, native first.
        copy: of a copy that reads and writes ``bytes`` in all.
        problem: why nothing could be measured, or "".
    """

    op: str
    tokens: int
    hidden: int
    dtype: str
    bytes: int = 0
    providers: tuple[ProviderResult, ...] = ()
    copy: Times | None = None
    problem: str = ""

    def native(self) -> Times | None:
        """Return the native definition's time."""
        return next((p.time for p in self.providers if p.provider == "native"), None)


@dataclass(frozen=True)
class Bandwidth:
    """The best measured copy.

    Args:
        bytes_per_second: read and written, over the median time.
        bytes: of that copy, read and written.
    """

    bytes_per_second: float
    bytes: int


@dataclass(frozen=True)
class Result:
    """Everything that was measured, and how.

    Args:
        circumstances: date, machine, versions, threads, command.
        method: sentences that say what the figures are.
        large_copy: bytes read and written by the large copy.
        large_copy_time: of that copy.
        points: in order of measuring.
        interrupted: the user stopped it; what is here was measured to the end.
    """

    circumstances: Mapping[str, Any]
    method: tuple[str, ...]
    large_copy: int
    large_copy_time: Times | None
    points: tuple[Point, ...]
    interrupted: bool = False

    def bandwidth(self) -> Bandwidth | None:
        """Return the best of all copies of this run, None if there was none."""
        copies = [(p.bytes, p.copy) for p in self.points] + [(self.large_copy, self.large_copy_time)]
        measured = [Bandwidth(size / t.median, size) for size, t in copies if t is not None and t.median]
        return max(measured, key=lambda b: b.bytes_per_second, default=None)

    def fraction(self, point: Point, times: Times) -> float | None:
        """Return the point's bytes over the time, over the best copy's bandwidth, no unit."""
        best = self.bandwidth()
        return point.bytes / times.median / best.bytes_per_second if best and times.median else None

    def to_dict(self) -> dict[str, Any]:
        """Return the result for JSON; times in seconds."""
        best = self.bandwidth()
        points = []
        for point in self.points:
            told = asdict(point)
            for made, provider in zip(told["providers"], point.providers, strict=True):
                native = point.native()
                timed = provider.time
                made["bandwidth_fraction"] = None if timed is None else self.fraction(point, timed)
                made["times_native"] = native.median / timed.median if native and timed and timed.median else None
            points.append(told)
        return {
            "schema": SCHEMA,
            **self.circumstances,
            "method": list(self.method),
            "interrupted": self.interrupted,
            "large_copy": {
                "bytes": self.large_copy,
                "time": asdict(self.large_copy_time) if self.large_copy_time else None,
            },
            "best_bandwidth": asdict(best) if best else None,
            "points": points,
        }
