"""opdock's Triton kernels for Ascend: their values in Triton-Ascend's interpreter, and their way to HIVM."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "hivm" / "hivm_kernels.py"
CORE = Path(__file__).parents[3] / "core"
VALUES = """
import torch
from opdock import ir
from opdock.nn.kernels import triton
torch.manual_seed(0)
x, residual, weight, table = torch.randn(5, 96), torch.randn(5, 96), torch.randn(96), torch.rand(16, 32)
ops = ir.ops
pairs = [(triton.rms_norm(x.clone(), weight, 1e-5), ops.rms_norm(x, weight, 1e-5))]
pairs += [(getattr(triton, name)(x), getattr(ops, name)(x)) for name in ("silu_and_mul", "gelu_and_mul")]
mine = triton.fused_add_rms_norm(x.clone(), residual.clone(), weight, 1e-5)
pairs += zip(mine, ops.fused_add_rms_norm(x, residual, weight, 1e-5))
for neox in (True, False):
    rest = (48, table, neox)
    mine = triton.rotary_embedding(torch.arange(5), x.clone(), residual.clone(), *rest)
    pairs += zip(mine, ops.rotary_embedding(torch.arange(5), x, residual, *rest))
print(len(pairs), max((a - b).abs().max().item() for a, b in pairs))
"""


def _why_no_triton_ascend() -> str:
    missing = [name for name in ("triton.backends.ascend", "ascendnpuir", "pybind11") if not _is_there(name)]
    return f"needs triton-ascend and ascendnpu-ir, which nox -s plugin-ascend has: no {missing[0]}" if missing else ""


def _is_there(name: str) -> bool:
    parent, _, _ = name.partition(".")
    spec = importlib.util.find_spec(parent)
    if spec is None or not spec.submodule_search_locations:
        return spec is not None
    return name == parent or Path(spec.submodule_search_locations[0], *name.split(".")[1:]).is_dir()


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(_why_no_triton_ascend()), reason=_why_no_triton_ascend() or "it is here"),
]


def _run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    python_path = os.pathsep.join((str(CORE), os.environ.get("PYTHONPATH", "")))
    environ = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONPATH": python_path, **variables}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environ)


def test_in_the_interpreter_of_triton_ascend_the_kernels_agree_with_native_ops() -> None:
    done = _run("-c", VALUES, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr
    count, error = done.stdout.split()
    assert int(count) == 9
    assert float(error) < 2e-6


def test_every_kernel_is_lowered_to_hivm_and_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    """The script's own table and status; here, that what it wrote is what it says."""
    done = _run(str(SCRIPT), str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    made = json.loads((tmp_path / "hivm.json").read_text(encoding="utf-8"))
    assert len(made) == 60
    refused = [one for one in made if one["error"]]
    assert {one["kernel"] for one in refused} == {"rms_norm, 131072"}
    assert all("overflow" in one["error"].lower() for one in refused)
    lowered = [one for one in made if not one["error"]]
    assert all(0 < one["unified_buffer"] <= 192 * 1024 for one in lowered)
    wide, narrow = (
        next(one for one in lowered if one["kernel"] == f"rms_norm, {width}" and one["dtype"] == "fp16")
        for width in (4096, 1024)
    )
    assert 3.5 < wide["unified_buffer"] / narrow["unified_buffer"] < 4.5
