"""opdock_cuda.library: loading the kernels, or knowing why not."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from opdock_cuda import library
from opdock_cuda.library import runs_on, unfit


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


def test_a_file_that_is_no_library_is_a_reason_and_no_error(tmp_path: object) -> None:
    program = (
        "import shutil, sys, pathlib, opdock_cuda\n"
        f"folder = pathlib.Path({str(tmp_path)!r}) / 'opdock_cuda'\n"
        "old = pathlib.Path(opdock_cuda.__file__).parent\n"
        "shutil.copytree(old, folder, ignore=shutil.ignore_patterns('*.so', '__pycache__'))\n"
        "(folder / '_C.abi3.so').write_text('no library')\n"
        "for name in [n for n in sys.modules if n.startswith('opdock_cuda')]: del sys.modules[name]\n"
        "sys.path.insert(0, str(folder.parent))\n"
        "from opdock_cuda import library\n"
        "from opdock_cuda.platform import CudaPlatform\n"
        "CudaPlatform.import_kernels()\n"
        "assert library.__file__.startswith(str(folder)), library.__file__\n"
        "print(library.why_not())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("_C.abi3.so cannot be loaded: ")
    assert "_C.abi3.so" in done.stdout.removeprefix("_C.abi3.so")
