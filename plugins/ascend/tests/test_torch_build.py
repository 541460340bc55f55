"""opdock_ascend.torch_build: what is installed, read from files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from opdock_ascend.torch_build import fits, wanted_torch

READ = "from opdock_ascend.torch_build import read; import sys; print(read()); assert 'torch' not in sys.modules"


@pytest.mark.parametrize(
    ("version", "wanted", "expected"),
    [
        ("2.13.0", "==2.13.0.*", True),
        ("2.13.0+cpu", "==2.13.0.*", True),
        ("2.13.1", "==2.13.0.*", False),
        ("2.14.1", "==2.13.0.*", False),
        ("2.13.0a0+git1234", "==2.13.0.*", True),
        ("2.13.0", "", True),
        ("of unknown version", "==2.13.0.*", True),
    ],
)
def test_a_torch_fits_where_torch_npu_says_so_or_nothing_is_known(version: str, wanted: str, expected: bool) -> None:
    assert fits(version, wanted) is expected


@pytest.mark.parametrize(
    ("requires", "expected"),
    [
        (["numpy", "torch==2.13.0.*"], "==2.13.0.*"),
        (["torch (==2.13.0.*)"], "==2.13.0.*"),
        (["torchvision>=1", "not a requirement ==", "torch"], ""),
        ([], ""),
    ],
)
def test_what_torch_npu_fits_is_among_its_requirements(requires: list[str], expected: str) -> None:
    assert wanted_torch(requires) == expected


def test_versions_are_read_without_importing_anything(tmp_path: Path) -> None:
    """A package whose import ends the process, as a broken one may."""
    (tmp_path / "torch_npu").mkdir()
    (tmp_path / "torch_npu" / "__init__.py").write_text("import os; os._exit(3)\n", encoding="utf-8")
    info = tmp_path / "torch_npu-9.8.7.dist-info"
    info.mkdir()
    text = "Metadata-Version: 2.1\nName: torch_npu\nVersion: 9.8.7\nRequires-Dist: torch==9.8.*\n"
    (info / "METADATA").write_text(text, encoding="utf-8")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {READ}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "torch_npu='9.8.7', wanted='==9.8.*'" in done.stdout, done.stderr


def test_files_without_metadata_are_of_unknown_version(tmp_path: Path) -> None:
    (tmp_path / "torch_npu").mkdir()
    (tmp_path / "torch_npu" / "__init__.py").write_text("", encoding="utf-8")
    hide = "import importlib.metadata as m; m.distribution = lambda name: (_ for _ in ()).throw(m.PackageNotFoundError)"
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {hide}\n{READ}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "torch_npu='of unknown version'" in done.stdout, done.stderr
