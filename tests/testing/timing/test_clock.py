"""Clocks of devices."""

from __future__ import annotations

import pytest
import torch

from opdock.testing.timing.clock import CpuClock, EventClock, HostClock, clock_for

CPU = torch.device("cpu")


def test_each_device_gets_the_best_clock_that_it_has() -> None:
    """One without events of its own is measured by the host's."""
    assert isinstance(clock_for(CPU), CpuClock)
    assert isinstance(clock_for(torch.device("meta")), HostClock)


def test_the_cpu_is_measured_with_the_threads_of_the_process_which_are_told() -> None:
    """The timer's own default would be one thread."""
    seen: set[int] = set()
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        clock = CpuClock()
        samples = clock.samples(lambda: seen.add(torch.get_num_threads()), 0.001)
    finally:
        torch.set_num_threads(before)
    assert seen == {2} and "2 thread(s)" in clock.method
    assert samples.device and samples.host == () and all(s > 0 for s in samples.device)


def test_a_device_without_timed_events_is_measured_by_the_hosts_clock() -> None:
    """With the wait for it, and the host's part beside it."""
    samples = HostClock(CPU).samples(lambda: None, 0.001)
    assert len(samples.device) == len(samples.host) >= 1
    assert all(whole >= part >= 0 for whole, part in zip(samples.device, samples.host, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.accelerator.is_available(), reason="needs an accelerator, which is not here")
def test_an_accelerator_is_measured_by_its_own_events() -> None:
    """The host's part is told beside it."""
    device = torch.accelerator.current_accelerator()
    assert device is not None
    clock = clock_for(device)
    assert isinstance(clock, EventClock) and "L2 cache emptied" in clock.method
    x = torch.ones(1 << 20, device=device)
    samples = clock.samples(x.zero_, 0.01)
    assert len(samples.host) == len(samples.device) >= 5 and min(samples.device) > 0
