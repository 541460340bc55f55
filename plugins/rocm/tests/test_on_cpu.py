"""The HIP kernels' values: opdock-cuda's sources, compiled as HIP over a stand-in runtime that runs them on the CPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "on_cpu"
_spec = importlib.util.spec_from_file_location("rocm_on_cpu_build", HERE / "build.py")
assert _spec is not None and _spec.loader is not None
_build = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_build)


@pytest.mark.slow
@pytest.mark.skipif(not _build.compiler(), reason="needs clang: apt-get install clang-19")
@pytest.mark.parametrize("gfx", ["gfx90a", "gfx942"])
def test_the_kernels_are_the_definitions(gfx: str, tmp_path: Path) -> None:
    made = tmp_path / "on_cpu.so"
    _build.build(made, gfx)
    root = HERE.parents[3]
    paths = [str(root / "core"), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
    given = {"OPDOCK_ROCM_ON_CPU": str(made), "OPDOCK_ROCM_GFX": gfx, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", HERE / "values.py"]
    done = subprocess.run(
        command,
        env={**os.environ, **given, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        cwd=root,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
