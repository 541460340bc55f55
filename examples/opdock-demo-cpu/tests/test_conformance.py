"""opdock's conformance kit against this package."""

from __future__ import annotations

from opdock.testing import Conformance


class TestConformance(Conformance):
    """The kit against this package."""

    plugin = "opdock_demo_cpu"
    environ = {"DEMO_CPU_DEVICES": "1"}
    skips: dict[str, str] = {}
