"""Every registration of a test is taken back, and priorities are the defaults again."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _undo(taken_back: None) -> None:
    """Keep tests apart, and their numbers repeatable."""
