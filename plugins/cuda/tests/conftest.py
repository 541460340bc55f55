"""What the tests of opdock-cuda share."""

from __future__ import annotations

import pytest

from opdock.errors import PlatformError
from opdock_cuda.probe import probe


@pytest.fixture
def gpu() -> None:
    """A usable NVIDIA GPU; the test is skipped with the probe's reason where there is none."""
    try:
        reason = probe()
    except PlatformError as err:
        reason = err.what
    if reason is not None:
        pytest.skip(f"needs an NVIDIA GPU: {reason}")
