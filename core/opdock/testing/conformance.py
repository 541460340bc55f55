"""The class that a package's tests subclass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class Conformance:
    """The kit over one package: pytest expands a subclass named ``Test...`` into one test for each check and subject.

    ```python no-run
    class TestConformance(opdock.testing.Conformance):
        plugin = "opdock_acme"
    ```

    Attributes:
        plugin: name of the entry point.
        environ: environment variables that the package needs in the child that checks it.
        skips: patterns of checks that are left out, each with the reason: ``"provider.compiled[rms_norm/acme]"``,
            ``"layer.*"``. They are reported; one that matches nothing is an error.
        device: where tensors are made, where that is not the platform's: ``cpu`` for kernels in an interpreter.
    """

    plugin: ClassVar[str] = ""
    environ: ClassVar[Mapping[str, str]] = {}
    skips: ClassVar[Mapping[str, str]] = {}
    device: ClassVar[str] = ""
