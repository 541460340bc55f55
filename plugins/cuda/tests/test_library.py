"""opdock_cuda.library: loading the kernels, or knowing why not."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from opdock_cuda import library
from opdock_cuda.library import FILE, runs_on, unfit


def test_without_the_file_the_reason_says_how_to_build() -> None:
    assert unfit("2.11.0", built=False).startswith("built without CUDA kernels: ")
    assert "OPDOCK_CUDA_BUILD=1" in unfit("2.11.0", built=False)


@pytest.mark.parametrize("version", ["2.11.0+cu130", "2.15.0a0+git123", "3.0.0"])
def test_a_torch_that_is_new_enough_fits(version: str) -> None:
    assert unfit(version, built=True) == ""


@pytest.mark.parametrize("version", ["2.10.1", "2.9.0+cpu", "1.13", "unknown"])
def test_an_older_torch_does_not_fit(version: str) -> None:
    assert unfit(version, built=True) == f"needs torch>=2.11, and torch is {version}"


@pytest.mark.parametrize(
    ("architectures", "capability", "expected"),
    [
        (["8.0", "9.0", "10.0+PTX"], (8, 0), True),
        (["8.0", "9.0", "10.0+PTX"], (8, 9), True),
        (["8.0", "9.0", "10.0+PTX"], (9, 0), True),
        (["8.0", "9.0", "10.0+PTX"], (12, 1), True),
        (["8.0", "9.0", "10.0+PTX"], (7, 5), False),
        (["9.0"], (10, 0), False),
        (["9.0"], (8, 0), False),
        (["8.6"], (8, 0), False),
        (None, (8, 0), True),
        (None, (7, 5), False),
    ],
)
def test_machine_code_runs_on_its_own_generation_and_ptx_on_later_ones(
    architectures: list[str] | None, capability: tuple[int, int], expected: bool
) -> None:
    assert runs_on(architectures, capability) is expected


def test_loading_again_is_the_same_answer() -> None:
    assert library.load() == library.load() == (library.why_not() == "")


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is built for CUDA")
def test_on_a_cpu_torch_the_linkers_words_are_kept() -> None:
    reason = library.why_not()
    assert "libtorch_cuda.so" in reason or reason.startswith("built without CUDA kernels")


def _under_a_copy(folder: Path, program: str) -> str:
    """Run a program that imports a copy of the package, which lies in ``folder``; return what it printed."""
    copy = folder / "opdock_cuda"
    shutil.copytree(
        Path(library.__file__).parent, copy, ignore=shutil.ignore_patterns("*.so", "__pycache__"), dirs_exist_ok=True
    )
    whole = (
        f"import sys\nsys.path.insert(0, {str(folder)!r})\n"
        "sys.modules.pop('opdock_cuda', None)\n"
        "from opdock_cuda import library\n"
        f"assert library.__file__.startswith({str(folder)!r}), library.__file__\n"
    )
    done = subprocess.run([sys.executable, "-c", whole + program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _compile(file: Path, source: str) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    file.parent.mkdir(parents=True, exist_ok=True)
    line = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(file)]
    subprocess.run(line, input=source, text=True, check=True)


WHY = (
    "from opdock_cuda.platform import CudaPlatform\n"
    "CudaPlatform.import_kernels()\n"
    "CudaPlatform.import_kernels()\n"
    "print(library.why_not())\n"
    "print(library.load())\n"
)


def test_a_file_that_is_no_library_is_a_reason_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "opdock_cuda").mkdir()
    (tmp_path / "opdock_cuda" / FILE).write_text("no library")
    reason, loaded = _under_a_copy(tmp_path, WHY).splitlines()
    assert reason.startswith(f"{FILE} cannot be loaded: ")
    assert FILE in reason.removeprefix(FILE), "the linker names the file"
    assert loaded == "False"


def test_a_missing_symbol_is_named_by_the_linker(tmp_path: Path) -> None:
    source = "extern int aoti_torch_not_there_(void);\nint PyInit__C(void) { return aoti_torch_not_there_(); }\n"
    _compile(tmp_path / "opdock_cuda" / FILE, source)
    assert "undefined symbol: aoti_torch_not_there_" in _under_a_copy(tmp_path, WHY)


def test_a_library_that_is_no_python_module_is_told_so(tmp_path: Path) -> None:
    _compile(tmp_path / "opdock_cuda" / FILE, "int other(void) { return 0; }\n")
    assert "PyInit__C" in _under_a_copy(tmp_path, WHY)


def test_a_library_that_needs_another_library_says_which(tmp_path: Path) -> None:
    _compile(tmp_path / "libnot_there_.so", "int other(void) { return 0; }\n")
    compiler = shutil.which("cc") or "gcc"
    file = tmp_path / "opdock_cuda" / FILE
    file.parent.mkdir()
    more = [f"-L{tmp_path}", "-Wl,--no-as-needed", "-lnot_there_"]
    subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", "/dev/null", "-o", str(file), *more], check=True)
    (tmp_path / "libnot_there_.so").unlink()
    assert "libnot_there_.so: cannot open shared object file" in _under_a_copy(tmp_path, WHY)


def test_the_object_of_another_python_is_no_kernels_and_says_how_to_build_them(tmp_path: Path) -> None:
    """An ABI-tagged file is one that this Python does not look for, so it does not count as there."""
    _compile(tmp_path / "opdock_cuda" / "_C.cpython-399-x86_64-linux-gnu.so", "int other(void) { return 0; }\n")
    assert _under_a_copy(tmp_path, WHY).startswith("built without CUDA kernels: ")
