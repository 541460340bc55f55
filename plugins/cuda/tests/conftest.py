"""What the tests of opdock-cuda share."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import opdock_cuda
from opdock import context, journal
from opdock.errors import PlatformError
from opdock_cuda.platform import CudaPlatform
from opdock_cuda.probe import probe

sys.path.append(str(Path(__file__).parent / "helpers"))  # pytest's importlib mode puts no folder there


@pytest.fixture
def gpu() -> None:
    """A usable NVIDIA GPU; the test is skipped with the probe's reason where there is none."""
    try:
        reason = probe()
    except PlatformError as err:
        reason = err.what
    if reason is not None:
        pytest.skip(f"needs an NVIDIA GPU: {reason}")


class _Done(Exception):
    """Ends the transaction of a test by rolling it back."""


@pytest.fixture
def registered() -> Iterator[None]:
    """The providers are registered as the platform's hooks do it, and taken back after the test."""
    before = context.kernels_loaded()
    with contextlib.suppress(_Done), journal.transaction():
        CudaPlatform.import_kernels()
        context.mark_kernels_loaded()
        _forget_providers()
        CudaPlatform.import_ir_kernels()
        yield
        _forget_providers()
        context.mark_kernels_loaded(loaded=before)
        raise _Done


def _forget_providers() -> None:
    for name in ("providers", "triton_providers"):
        sys.modules.pop(f"opdock_cuda.{name}", None)
        opdock_cuda.__dict__.pop(name, None)


@pytest.fixture
def kernels(gpu: None) -> None:
    """A usable GPU, and the kernels for it; the test is skipped with the reason where they are not."""
    from opdock_cuda import library

    reason = library.why_not_on(CudaPlatform.get_device_capability())
    if reason:
        pytest.skip(f"needs the CUDA kernels: {reason}")
