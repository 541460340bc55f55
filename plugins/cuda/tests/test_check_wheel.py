"""check_wheel.py: which symbols a shared object may want, and what a wheel has to hold."""

from __future__ import annotations

import importlib.util
import shutil
import struct
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from opdock_cuda import library

SCRIPT = Path(__file__).parents[1] / "check_wheel.py"
BUILT = Path(library.__file__).with_name(library.FILE)
TAG = "opdock_cuda-0.1.0-cp310-abi3-linux_x86_64.whl"


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_wheel", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pytest.importorskip("test.test_stable_abi_ctypes", reason="this Python came without its own tests")
    return module


def test_c_functions_of_torch_and_the_limited_api_are_stable(check: ModuleType) -> None:
    wanted = ["aoti_torch_get_data_ptr", "torch_call_dispatcher", "PyModule_Create2", "PyObject_GetAttr", "memcpy"]
    wanted += ["_Py_Dealloc", "_ZNSt7__cxx1118basic_stringstreamIcSt11char_traitsIcESaIcEEC1Ev"]
    assert check.check_symbols(wanted) == []


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("PyUnicode_AsUTF8", "not in Python's stable ABI"),  # from 3.13 on only
        ("PyDict_GetItemRef_", "not in Python's stable ABI"),
        ("_PyObject_GetState", "private to Python"),
        ("_ZN2at4_ops5empty4callEv", "torch's C++"),
        ("_ZNK3c1010TensorImpl5sizesEv", "torch's C++"),
        ("_ZN5torch7LibraryD1Ev", "torch's C++"),
        ("_ZTIN3c105ErrorE", "torch's C++"),
    ],
)
def test_what_may_change_with_a_release_is_named(check: ModuleType, name: str, why: str) -> None:
    (said,) = check.check_symbols(["memcpy", name])
    assert name in said
    assert why in said


def test_a_wheel_holds_one_object_and_says_for_which_pythons(check: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "opdock_cuda").mkdir()
    (tmp_path / "opdock_cuda" / "_C.abi3.so").touch()
    assert check.check_names(Path(TAG), tmp_path) == []
    assert "cp311-cp311" in check.check_names(Path(TAG.replace("cp310-abi3", "cp311-cp311")), tmp_path)[0]
    (tmp_path / "opdock_cuda" / "libtorch_cuda.so").touch()
    assert "libtorch_cuda.so" in check.check_names(Path(TAG), tmp_path)[0]


def _fatbin(*kinds: tuple[int, int], filled: int = 16) -> bytes:
    """A fat binary as nvcc lays it out: images of a kind (1: PTX, 2: machine code) for a capability."""
    body = b"".join(
        struct.pack("<H2xIQ", kind, 64, filled) + bytes(12) + struct.pack("<I", number) + bytes(32) + bytes(filled)
        for kind, number in kinds
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def test_the_images_of_every_fat_binary_are_found(check: ModuleType) -> None:
    data = bytes(40) + _fatbin((2, 80), (2, 90)) + bytes(8) + _fatbin((2, 100), (1, 100), filled=40) + bytes(40)
    assert check.images(data) == ["compute_100", "sm_100", "sm_80", "sm_90"]
    assert check.images(bytes(200)) == []


def test_images_that_the_file_of_facts_does_not_name_are_told(check: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "opdock_cuda").mkdir()
    (tmp_path / "opdock_cuda" / "_C.json").write_text('{"architectures": ["8.0", "10.0+PTX"]}')
    assert check.check_images(["compute_100", "sm_100", "sm_80"], tmp_path) == []
    assert "sm_75" in check.check_images(["compute_100", "sm_100", "sm_75", "sm_80"], tmp_path)[0]


@pytest.mark.skipif(
    not BUILT.with_name("_C.json").is_file() or shutil.which("nm") is None, reason="needs the kernels, built, and nm"
)
def test_the_object_that_is_built_here_passes(
    check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with zipfile.ZipFile(tmp_path / TAG, "w") as archive:
        archive.write(BUILT, "opdock_cuda/_C.abi3.so")
        archive.write(BUILT.with_name("_C.json"), "opdock_cuda/_C.json")
    monkeypatch.setattr("sys.argv", [str(SCRIPT), str(tmp_path / TAG)])
    assert check.main() == 0, capsys.readouterr().err
