"""What ``pytest --opdock-plugin=NAME`` runs when it is given no tests of its own."""

from __future__ import annotations

from opdock.testing import Conformance


class TestInstalled(Conformance):
    """The kit over the package that the option names."""
