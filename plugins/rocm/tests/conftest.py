"""What the tests of opdock-rocm share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from opdock.nn.kernels import triton

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


@pytest.fixture
def interpret() -> Callable[[str], str]:
    """Run a file of this folder under pytest with Triton's interpreter, and return what it printed.

    The interpreter is chosen when a kernel is defined, so it needs a process of its own. Where Triton is not, the test
    is skipped with the reason.
    """
    if reason := triton.why_not():
        pytest.skip(f"needs Triton, which nox -s plugin-rocm has: {reason}")

    def run(file: str) -> str:
        paths = [str(ROOT / "core"), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings=default"]
        ended = subprocess.run(
            [*command, HERE / file],
            env={
                **os.environ,
                "TRITON_INTERPRET": "1",
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            },
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    return run
