"""build_kernels.py: what nvcc is asked for; the build itself is too slow for a test."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parents[1] / "build_kernels.py"


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_kernels", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_default_is_machine_code_for_three_generations_and_ptx_for_what_follows(build: ModuleType) -> None:
    assert build.gencodes(build.parse_architectures(build.ARCHITECTURES)) == [
        "-gencode=arch=compute_80,code=sm_80",
        "-gencode=arch=compute_90,code=sm_90",
        "-gencode=arch=compute_100,code=sm_100",
        "-gencode=arch=compute_100,code=compute_100",
    ]


@pytest.mark.parametrize("text", ["9.0", "8.0;9.0", "8.0, 9.0+PTX", " 12.1 "])
def test_capabilities_are_read_as_torch_writes_them(build: ModuleType, text: str) -> None:
    assert "".join(build.parse_architectures(text)) == text.replace(";", "").replace(",", "").replace(" ", "")


@pytest.mark.parametrize("text", ["", "90", "sm_90", "9.0+ptx"])
def test_other_text_stops_the_build_with_an_example(build: ModuleType, text: str) -> None:
    with pytest.raises(SystemExit, match=r"no list of capabilities such as '8.0;9.0;10.0\+PTX'"):
        build.parse_architectures(text)


def test_an_object_file_is_made_anew_when_a_source_or_the_command_changes(build: ModuleType, tmp_path: Path) -> None:
    made = tmp_path / "a.o"
    assert not build.is_fresh(made, ["nvcc", "-c"], 0.0)
    made.write_text("")
    made.with_suffix(".txt").write_text("nvcc -c")
    age = made.stat().st_mtime
    assert build.is_fresh(made, ["nvcc", "-c"], age - 1)
    assert not build.is_fresh(made, ["nvcc", "-c"], age + 1)
    assert not build.is_fresh(made, ["nvcc", "-O3", "-c"], age - 1)


def test_every_source_of_the_folder_is_built(build: ModuleType) -> None:
    assert {Path(name).suffix for name in build.SOURCES} == {".cu"}
    assert len(build.SOURCES) == len(list((FILE.parent / "csrc").glob("*.cu"))) > 0


def test_a_missing_compiler_stops_the_build_in_words(build: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NVCC", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(build.shutil, "which", lambda *_, **__: None)
    with pytest.raises(SystemExit, match="nvcc is neither on PATH"):
        build.find_nvcc()
