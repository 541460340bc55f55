"""What the tests of opdock-ascend share."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import pytest

import opdock

STANDIN = "OPDOCK_ASCEND_STANDIN"


def why_no_npu() -> str:
    """Return why this process has no stand-in NPU, "" where it has."""
    if importlib.util.find_spec("torch_npu") is None:
        return "torch_npu is not installed: nox -s plugin-ascend has it"
    if not os.environ.get(STANDIN):
        return "no CANN: python plugins/ascend/tests/standin/run.py starts pytest over a stand-in"
    return ""


@pytest.fixture
def torch_npu() -> Any:
    """The real torch_npu over the stand-in runtime; the test is skipped in words where it is not."""
    reason = why_no_npu()
    if reason:
        pytest.skip(f"needs torch_npu and a runtime: {reason}")
    return importlib.import_module("torch_npu")


@pytest.fixture
def calls(torch_npu: Any) -> Any:
    """The record of what torch_npu's operators were called with in this test."""
    import npu_standin

    npu_standin.forget()
    return npu_standin.calls


@pytest.fixture
def activated(torch_npu: Any) -> Iterator[None]:
    """The platform of this process is this package's, its providers are registered, and a configuration is set."""
    with opdock.set_current_config():
        assert opdock.current_platform.device_type == "npu"
        yield
