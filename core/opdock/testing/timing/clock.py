"""Clocks: how long a call takes on a device, sample by sample."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

Call = Callable[[], Any]
_L2_FALLBACK = 256 << 20  # bytes; larger than any L2 cache known
_MOST_FLUSHES = 64
_LARGEST_KEPT = (32 << 20) - (64 << 10)  # bytes; glibc's DEFAULT_MMAP_THRESHOLD_MAX, and room for its header


@dataclass(frozen=True)
class Samples:
    """Seconds of calls: on the device's clock, and until the host had the call back (empty on the CPU)."""

    device: tuple[float, ...]
    host: tuple[float, ...] = ()


class Clock(Protocol):
    """Takes samples of a call."""

    method: str
    """A sentence that says what a sample is."""

    def samples(self, call: Call, seconds: float) -> Samples:
        """Return samples that take about ``seconds`` in all, at least one."""


class CpuClock:
    """``torch.utils.benchmark.Timer``: each sample is the mean over a block of calls, caches warm."""

    def __init__(self) -> None:
        """Keep the number of threads of this process, and put the allocator into the state of a long run."""
        self.threads = torch.get_num_threads()
        # glibc gives freed memory back to the system until a block of this size was freed once. Without it, the first
        # ops measured pay for page faults that later ones, and models, do not.
        torch.empty(_LARGEST_KEPT, dtype=torch.uint8)
        self.method = (
            f"CPU: torch.utils.benchmark.Timer.blocked_autorange, {self.threads} thread(s); a sample is the mean over "
            "a block of calls on the same tensors, so what fits into a cache is read from it."
        )

    def samples(self, call: Call, seconds: float) -> Samples:
        """Return the means of blocks of calls."""
        from torch.utils.benchmark import Timer

        timer = Timer("call()", globals={"call": call}, num_threads=self.threads)
        return Samples(tuple(timer.blocked_autorange(min_run_time=seconds).times))


class EventClock:
    """Events of the device around each call, behind a write that empties the L2 cache.

    The write is repeated until it outlasts the host's part of a call, so that the device waits for no launch: a call
    of several kernels is then timed as the kernels, not as the host that launches them.

    Raises: RuntimeError or what torch raises, if the device has no events that measure time.
    """

    def __init__(self, device: torch.device) -> None:
        """Allocate what is written over the cache, and find out how long that takes."""
        self.device = device
        size = 2 * _l2_bytes(device)
        self._cover = torch.empty(size, dtype=torch.uint8, device=device)
        self._flush_seconds = self._elapsed(self._cover.zero_)
        self.method = (
            f"{device.type}: events of the device around single calls, L2 cache emptied before each by writing "
            f"{size >> 20} MiB (repeated to outlast the host's part of a call); host time is what a call takes to "
            "return, beside it."
        )

    def samples(self, call: Call, seconds: float) -> Samples:
        """Return single calls."""
        call()
        self._synchronize()
        start = time.perf_counter()
        call()
        host = time.perf_counter() - start
        self._synchronize()
        once = time.perf_counter() - start
        flushes = min(_MOST_FLUSHES, 1 + int(1.5 * host / max(self._flush_seconds, 1e-7)))
        count = max(5, min(1000, int(seconds / (once + flushes * self._flush_seconds))))
        pairs = [(self._event(), self._event()) for _ in range(count)]
        hosts = []
        for before, after in pairs:
            for _ in range(flushes):
                self._cover.zero_()
            before.record()
            start = time.perf_counter()
            call()
            hosts.append(time.perf_counter() - start)
            after.record()
        self._synchronize()
        return Samples(tuple(before.elapsed_time(after) / 1e3 for before, after in pairs), tuple(hosts))

    def _elapsed(self, call: Call) -> float:
        call()
        before, after = self._event(), self._event()
        before.record()
        call()
        after.record()
        self._synchronize()
        return float(before.elapsed_time(after)) / 1e3

    def _event(self) -> Any:
        return torch.Event(device=self.device, enable_timing=True)

    def _synchronize(self) -> None:
        torch.accelerator.synchronize(self.device)


class HostClock:
    """The host's clock around a call and the wait for it: for devices whose events measure no time."""

    def __init__(self, device: torch.device) -> None:
        """Keep the device."""
        self._device = device
        self.method = (
            f"{device.type}: its events measure no time; the host's clock around a call and the wait for the device, "
            "so a launch and a wait are in every figure."
        )

    def samples(self, call: Call, seconds: float) -> Samples:
        """Return single calls with their wait."""
        wait = _synchronizer(self._device)
        call()
        wait()
        end = time.perf_counter() + seconds
        found: list[float] = []
        hosts: list[float] = []
        while not found or (time.perf_counter() < end and len(found) < 1000):
            start = time.perf_counter()
            call()
            hosts.append(time.perf_counter() - start)
            wait()
            found.append(time.perf_counter() - start)
        return Samples(tuple(found), tuple(hosts))


def clock_for(device: torch.device) -> Clock:
    """Return the best clock that the device has."""
    if device.type == "cpu":
        return CpuClock()
    try:
        return EventClock(device)
    except (RuntimeError, NotImplementedError, ValueError, TypeError, AttributeError):
        return HostClock(device)


def _l2_bytes(device: torch.device) -> int:
    """Return the size of the device's L2 cache in bytes, or more where it is not told."""
    module = getattr(torch, device.type, None)
    try:
        return int(module.get_device_properties(device).L2_cache_size) or _L2_FALLBACK  # type: ignore[union-attr]
    except (AttributeError, RuntimeError, TypeError):
        return _L2_FALLBACK


def _synchronizer(device: torch.device) -> Callable[[], object]:
    module = getattr(torch, device.type, None)
    if hasattr(module, "synchronize"):
        return module.synchronize  # type: ignore[no-any-return, union-attr]
    return lambda: torch.accelerator.synchronize(device)
