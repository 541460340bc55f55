"""opdock's conformance kit over this package; without a GPU, what can be checked without one."""

from __future__ import annotations

from opdock.testing import Conformance


class TestConformance(Conformance):
    plugin = "opdock_rocm"
