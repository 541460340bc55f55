"""The static check of a plugin package against the contract: its text and metadata are read, nothing of it runs."""

from __future__ import annotations

from opdock.testing.contract.checking import Result, check_package
from opdock.testing.contract.findings import Finding, Rule

__all__ = ["Finding", "Result", "Rule", "check_package"]
