"""Ahead-of-time builds: every program compiles for v5e, v6e and v5p, and what is counted in their text is right."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent / "aot"


def _traffic() -> Any:
    spec = importlib.util.spec_from_file_location("opdock_tpu_test_traffic", FOLDER / "traffic.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / script), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))


@pytest.mark.slow
@pytest.mark.usefixtures("libtpu", "torchax")
def test_every_program_compiles_for_every_target_and_no_kernel_copies_the_cache(tmp_path: Path) -> None:
    done = _run("targets.py", tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads((tmp_path / "targets.json").read_text(encoding="utf-8"))
    assert {entry["target"] for entry in found} == {"v5e", "v6e", "v5p"}
    for entry in found:
        decoder = entry["program"].startswith("Llama")
        assert entry["code"] > 0
        assert entry["kernels"] == (1 if not decoder else 2 if "decode" in entry["program"] else 0)
        assert decoder or entry["temporary"] < 1 << 18, entry
        # A step writes to the caches where they lie: its temporary memory is far below theirs.
        assert entry["temporary"] < entry["arguments"] / 5 or entry["arguments"] < 1 << 18, entry


@pytest.mark.slow
@pytest.mark.usefixtures("libtpu", "torchax")
def test_the_comparison_says_what_the_priorities_do(tmp_path: Path) -> None:
    """Op by op a kernel moves less; between matmuls the difference is small; paged attention gathers nothing."""
    done = _run("compare.py", tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    for pair in json.loads((tmp_path / "compare.json").read_text(encoding="utf-8")):
        ratio = pair["native"]["moved"] / pair["kernel"]["moved"]
        if pair["program"] in ("rms_norm", "fused_add_rms_norm"):
            assert ratio > 1.4, pair
        elif "matmul" in pair["program"]:
            assert 0.95 < ratio < 1.05, pair
        elif "decoded" in pair["program"]:
            assert ratio > 2.5, pair


def test_a_target_that_fails_fails_the_script(tmp_path: Path, libtpu: Any, torchax: Any) -> None:
    """A program for a chip that is not there, among those that are."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "import targets, programs\n"
        "programs.TARGETS = targets.TARGETS = {'v5e': 'v5e:2x2'}\n"
        "targets.decoders = lambda target: iter(())\n"
        "targets.kernels = lambda target: iter([programs.build('bad', target, 'x', lambda x: x @ x, "
        "[programs.array(3, 4)])])\n"
        "from pathlib import Path\n"
        "sys.exit(targets.main(Path(sys.argv[1])))\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path), str(FOLDER)]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 1
    assert "wrong: v5e: bad, x fails:" in done.stdout


TEXT = """HloModule x

%inner (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %n = f32[8]{0} negate(%p)
}

ENTRY %main (x: bf16[4,8], w: f32[8]) -> bf16[4,8] {
  %x.1 = bf16[4,8]{1,0:T(8,128)(2,1)} parameter(0), sharding={replicated}
  %copy-start = (bf16[4,8]{1,0:S(1)}, bf16[4,8]{1,0}, u32[]{:S(2)}) copy-start(%x.1)
  %w.1 = f32[8]{0} parameter(1)
  %fusion = f32[4]{0:T(256)S(1)} fusion(%x.1), kind=kLoop, calls=%inner
  %copy-done = bf16[4,8]{1,0:S(1)} copy-done(%copy-start)
  ROOT %fusion.2 = bf16[4,8]{1,0} fusion(%copy-done, %fusion, %w.1), kind=kLoop, calls=%inner
}
"""


def test_only_what_lies_in_the_devices_memory_is_counted() -> None:
    """X is read by the copy and by a fusion, w by the other one, which writes the result: 64 + 64 + 32 + 64 bytes."""
    assert _traffic().hbm_bytes(TEXT) == 64 + 64 + 32 + 64
