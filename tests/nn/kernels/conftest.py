"""What the tests of kernels share: Triton, in an interpreter of its own, or a reason why not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from opdock.nn.kernels import triton

HERE = Path(__file__).parent


@pytest.fixture
def needs_triton() -> None:
    """Triton; the test is skipped with the reason where it cannot be used."""
    if reason := triton.why_not():
        pytest.skip(f"needs Triton: {reason}")


@pytest.fixture
def interpret(needs_triton: None) -> Callable[[str], str]:
    """Run a file of this folder under pytest with Triton's interpreter, and return what it printed.

    The interpreter is chosen when a kernel is defined, so it needs a process of its own.
    """

    def run(file: str) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings=default"]
        ended = subprocess.run(
            [*command, str(HERE / file)],
            env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
            cwd=HERE.parents[2],
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    return run
