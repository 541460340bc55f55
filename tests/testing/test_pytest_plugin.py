"""The kit in pytest, as the author of a package sees it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CUDA = "opdock_cuda"


def _pytest(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environ},
        capture_output=True,
        text=True,
    )


@pytest.fixture(autouse=True)
def _needs_opdock_cuda() -> None:
    pytest.importorskip("opdock_cuda", reason="needs opdock-cuda, which is installed here for its tests")


def test_a_named_package_needs_no_test_files(tmp_path: Path) -> None:
    """Without a GPU what can be checked is, and the rest says why not."""
    report = tmp_path / "kit.json"
    done = _pytest(tmp_path, f"--opdock-plugin={CUDA}", "--opdock-seed=5", f"--opdock-json={report}")
    assert done.returncode == 0, done.stdout
    assert "opdock kit: opdock_cuda, small grid, seed 5" in done.stdout
    told = json.loads(report.read_text(encoding="utf-8"))
    assert told["ok"] is True
    assert told["seed"] == 5
    if "nothing:" in told["device"]:
        assert "not run: declined" in done.stdout
        assert {r["check"] for r in told["results"] if r["status"] == "not run"} >= {"platform.device_works"}


def test_a_subclass_names_the_package_and_its_skips(tmp_path: Path) -> None:
    (tmp_path / "test_kit.py").write_text(
        "from opdock.testing import Conformance\n\n"
        "class TestKit(Conformance):\n"
        "    plugin = 'opdock_cuda'\n"
        "    skips = {'platform.decline_reason': 'told elsewhere', 'layer.*': 'later', 'model.*': 'later'}\n\n"
        "    def test_of_its_own(self) -> None:\n"
        "        assert self.plugin\n",
        encoding="utf-8",
    )
    done = _pytest(tmp_path, "-k", "decline_reason or of_its_own")
    assert done.returncode == 0, done.stdout
    assert "1 passed, 1 skipped" in done.stdout
    assert "declared: told elsewhere" in done.stdout


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("    plugin = 'opdock_cdua'\n", "No installed package offers a plugin 'opdock_cdua'"),
        ("    plugin = ''\n", "names no plugin"),
        (f"    plugin = '{CUDA}'\n    skips = {{'provider.vlaues': 'x'}}\n", "match no check: provider.vlaues"),
        (f"    plugin = '{CUDA}'\n    skips = {{'layer.values': ''}}\n", "has no reason"),
    ],
)
def test_a_class_that_cannot_be_expanded_says_why(tmp_path: Path, body: str, said: str) -> None:
    (tmp_path / "test_kit.py").write_text(
        f"from opdock.testing import Conformance\n\nclass TestKit(Conformance):\n{body}", encoding="utf-8"
    )
    done = _pytest(tmp_path)
    assert done.returncode == 2, done.stdout
    assert said in done.stdout
