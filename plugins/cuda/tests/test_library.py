"""opdock_cuda.library: loading the kernels, or knowing why not."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

from opdock_cuda import elf, library
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
    headers = sysconfig.get_paths()["include"]
    line = [compiler, "-shared", "-fPIC", f"-I{headers}", "-x", "c", "-", "-o", str(file)]
    subprocess.run(line, input=source, text=True, check=True)


MODULE = (
    "#define Py_LIMITED_API 0x030A0000\n#include <Python.h>\n"
    'static struct PyModuleDef def = {PyModuleDef_HEAD_INIT, "_C", 0, -1};\n'
    "PyMODINIT_FUNC PyInit__C(void) { return PyModule_Create(&def); }\n"
)
"""A module as the kernels' own is, which registers no op."""


def _compile_module(file: Path, source: str = MODULE) -> None:
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        pytest.skip("needs the headers of Python")
    _compile(file, source)


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


@pytest.mark.parametrize("kept", [4096, -1])
def test_a_file_that_is_cut_off_is_a_reason_and_not_the_end_of_the_process(tmp_path: Path, kept: int) -> None:
    """The linker would map what is not there, and the process would die of SIGBUS."""
    file = tmp_path / "opdock_cuda" / FILE
    _compile(file, "char data[100000] = {1};\nint PyInit__C(void) { return 0; }\n")
    whole = file.read_bytes()
    assert elf.fault(file) == ""
    file.write_bytes(whole[:kept])
    reason = _under_a_copy(tmp_path, WHY).splitlines()[0]
    assert reason.startswith(f"{FILE} cannot be loaded: {file}: file cut off: it has ")
    assert reason.endswith(f" bytes of {len(whole):,}")


def test_a_file_of_another_processor_is_told_so(tmp_path: Path) -> None:
    file = tmp_path / "opdock_cuda" / FILE
    _compile(file, "int PyInit__C(void) { return 0; }\n")
    data = bytearray(file.read_bytes())
    data[18:20] = (0x1234).to_bytes(2, "little")  # e_machine
    file.write_bytes(data)
    reason, loaded = _under_a_copy(tmp_path, WHY).splitlines()
    assert reason.startswith(f"{FILE} cannot be loaded: {file}: built for another processor: ELF machine 4660, ")
    assert loaded == "False"
    assert elf.fault(file, program=tmp_path / "not_there") == "", "nothing to compare with"


def test_a_module_that_fails_in_its_own_words_is_a_reason(tmp_path: Path) -> None:
    create = "return PyModule_Create(&def);"
    source = MODULE.replace(create, '(void)&def; PyErr_SetString(PyExc_ValueError, "own words"); return 0;')
    _compile_module(tmp_path / "opdock_cuda" / FILE, source)
    assert _under_a_copy(tmp_path, WHY).splitlines() == [f"{FILE} cannot be loaded: own words", "False"]


DEFINES = (
    "import torch\nfrom opdock_cuda import fakes\nlib = torch.library.Library('opdock_cuda', 'FRAGMENT')\n"
    "for name in fakes.FAKES:\n"
    "    if name not in {without!r}: lib.define(name + '(Tensor x) -> Tensor')\n"
)
"""A module that defines ops as the kernels do."""


def _compile_kernels(folder: Path, *, without: tuple[str, ...] = (), more: str = "") -> None:
    """Compile a module that defines ops when it is loaded."""
    call = "return PyModule_Create(&def);"
    source = MODULE.replace(call, 'if (!PyImport_ImportModule("opdock_cuda.ops_")) return 0;\n' + call)
    _compile_module(folder / "opdock_cuda" / FILE, source)
    (folder / "opdock_cuda" / "ops_.py").write_text(DEFINES.format(without=without) + more)


def test_an_older_build_without_some_of_the_ops_is_told_with_their_names_each_time(tmp_path: Path) -> None:
    _compile_kernels(tmp_path, without=("token_fp8", "rms_norm"))
    want = f"{FILE} is of an older build, without rms_norm, token_fp8: build the package again"
    assert _under_a_copy(tmp_path, WHY + WHY).splitlines() == [want, "False"] * 2


def test_what_torch_says_about_an_op_half_way_is_the_reason_each_time(tmp_path: Path) -> None:
    """A second try would say that the first op has a fake already, which the first try gave it."""
    more = "lib.impl('token_fp8', lambda x: x, 'CompositeImplicitAutograd')\n"  # torch takes no fake beside that
    _compile_kernels(tmp_path, more=more)
    lines = _under_a_copy(tmp_path, WHY + WHY).splitlines()
    assert lines == lines[:2] * 2 and lines[1] == "False"
    assert "does not work with torch" in lines[0] and "token_fp8" in lines[0]


def test_b47_a_second_library_of_the_same_ops_is_refused_before_it_ends_the_process(tmp_path: Path) -> None:
    """Torch throws in the middle of the loading, where nobody can catch it."""
    _compile_module(tmp_path / "opdock_cuda" / FILE)
    lines = ("import torch", "lib = torch.library.Library('opdock_cuda', 'FRAGMENT')")
    first = "\n".join((*lines, "lib.define('rms_norm(Tensor x) -> Tensor')", ""))
    reason, loaded = _under_a_copy(tmp_path, first + WHY).splitlines()
    assert reason.startswith(f"{tmp_path / 'opdock_cuda' / FILE} is not loaded: ") and loaded == "False"
    assert "opdock_cuda::rms_norm, registered at " in reason


def test_b49_kernels_that_do_not_load_are_told_at_the_start_and_no_module_asks_for_their_ops(tmp_path: Path) -> None:
    """The cause is in the log, in every provider's reason and in the error of a direct call; all modules import."""
    (tmp_path / "opdock_cuda").mkdir()
    (tmp_path / "opdock_cuda" / FILE).write_text("no library")
    program = (
        "import importlib, logging, pkgutil, sys, torch, opdock_cuda\n"
        "logging.basicConfig(level=logging.INFO, stream=sys.stdout, format='%(message)s')\n"
        "from opdock import context, ir\n"
        "from opdock_cuda.platform import CudaPlatform as C\n"
        "C.import_kernels()\n"
        "context.mark_kernels_loaded()\n"
        "C.import_ir_kernels()\n"
        "[importlib.import_module('opdock_cuda.' + m.name) for m in pkgutil.iter_modules(opdock_cuda.__path__)\n"
        " if m.name != '_C']\n"
        "impls = [op.impls['cuda'] for op in ir.registry.values() if 'cuda' in op.impls]\n"
        "assert len(impls) > 10 and not any(i.supported for i in impls)\n"
        "assert {i.reason for i in impls} == {library.why_not()}, impls\n"
        "with ir.ops.rms_norm.set_priority(['cuda', 'native']):\n"
        "    x = torch.full((2, 8), 3.0)\n"
        "    print(ir.ops.rms_norm(x, None, 0.0).tolist() == torch.ones(2, 8).tolist())\n"
        "print(library.why_not())\n"
    )
    logged, served, reason = _under_a_copy(tmp_path, program).splitlines()
    assert reason.startswith(f"{FILE} cannot be loaded: ") and reason in logged and served == "True"
