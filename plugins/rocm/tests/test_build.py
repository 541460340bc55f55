"""build_kernels: the operators as one library, with Debian's clang; it is loaded beside a stand-in for libtorch_hip."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent
LACKING = [name for name in ("clang++-19", "lld-19", "cc") if shutil.which(name) is None]
HEADERS = Path("/usr/include/hip/hip_runtime.h")


def _load(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


build_kernels = _load("rocm_build_kernels", ROOT / "build_kernels.py")
hip_kernels = _load("rocm_hip_kernels", HERE / "aot" / "hip_kernels.py")


def test_architectures_are_a_list_and_what_is_none_is_refused() -> None:
    assert build_kernels.parse_architectures("gfx90a; gfx942,gfx1100") == ["gfx90a", "gfx942", "gfx1100"]
    for text in ("", "942", "sm_90"):
        with pytest.raises(SystemExit, match="is no list such as"):
            build_kernels.parse_architectures(text)


def test_the_operators_are_opdock_cudas_files_and_no_copies() -> None:
    assert all((build_kernels.SHARED / name).is_file() for name in build_kernels.OPERATORS)
    assert not [path for path in ROOT.rglob("*.cu*") if path.suffix in (".cu", ".cuh")]


LONG = "void opdock::long_row_kernel<opdock::__nv_bfloat16, opdock::__nv_fp8_e4m3, 4, (opdock::In)1, true, "


@pytest.mark.parametrize(
    ("signature", "expected"),
    [
        (
            f"{LONG}(opdock::Out)1, true, (opdock::Read)0>(opdock::Given<(opdock::In)1, true, (opdock::Out)1, false>)",
            ("fused_add_rms_norm_static_fp8_quant: long, 4, exact", "bfloat16"),
        ),
        (
            "void opdock::rotary_kernel<__half, float, true, 2>(void const*, bool)",
            ("rotary_embedding, halves, float32 table: 2 a thread", "float16"),
        ),
    ],
)
def test_kernels_are_named_by_what_they_do(signature: str, expected: tuple[str, str]) -> None:
    assert hip_kernels.named(signature) == expected


def test_a_kernel_that_spills_or_reads_narrowly_is_a_fault() -> None:
    good = hip_kernels.Kernel("gfx942", "rms_norm: short", "bfloat16", 16, 28, 0, 1200, 64, 0, 0, 3, 0)
    assert hip_kernels.fault(good) == ""
    for change, reason in (
        ({"spills": 2}, "spilled"),
        ({"wide_loads": 0}, "no load of 16"),
        ({"wave": 32}, "waves of 32"),
    ):
        changed = hip_kernels.Kernel(**{**good.__dict__, **change})
        assert reason in hip_kernels.fault(changed)


@pytest.mark.slow
@pytest.mark.skipif(
    bool(LACKING) or not HEADERS.is_file(),
    reason="needs clang-19 lld-19 libamdhip64-dev rocm-device-libs, which nox -s plugin-rocm asks for",
)
def test_the_library_is_built_and_registers_its_ops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libraries = hip_kernels.device_libraries(tmp_path / "device_libraries")
    flags = f"--rocm-path=/usr --rocm-device-lib-path={libraries} -I{HERE / 'rocthrust'} -O1"
    monkeypatch.setenv("OPDOCK_ROCM_FLAGS", flags)
    monkeypatch.setenv("OPDOCK_ROCM_ARCHS", "gfx942")
    monkeypatch.setenv("ROCM_PATH", "/usr")
    monkeypatch.setenv("HIPCC", shutil.which("clang++-19") or "")
    made = tmp_path / "_C.abi3.so"
    build_kernels.build(made, tmp_path / "objects")
    assert made.with_name("_C.json").read_text(encoding="utf-8") == '{"architectures": ["gfx942"], "torch": "2.11"}\n'
    stream = "int aoti_torch_get_current_cuda_stream(int device, void** stream) { *stream = 0; return 0; }\n"
    (tmp_path / "hip.c").write_text(stream, encoding="utf-8")
    torch_hip = tmp_path / "libtorch_hip.so"
    named = ("-Wl,-soname,libtorch_hip.so", "-o", str(torch_hip))
    subprocess.run(("cc", "-shared", "-fPIC", str(tmp_path / "hip.c"), *named), check=True)
    program = f"""
import ctypes, torch
ctypes.CDLL({str(torch_hip)!r})
torch.ops.load_library({str(made)!r})
names = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith("opdock_rocm::")]
assert len(names) == 15, names
assert all(torch._C._dispatch_has_kernel_for_dispatch_key(n, "CUDA") for n in names)
try:
    torch.ops.opdock_rocm.silu_and_mul(torch.ones(2, 8))
except NotImplementedError as err:
    print("no kernel for the CPU" if "CPU" in str(err) else err)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "no kernel for the CPU\n"


def test_a_rocm_on_path_is_found_and_its_compiler_comes_before_the_systems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder has LLVM beside the programs; a system's package has not."""
    for folder in ("whole/bin", "whole/llvm", "packaged/bin"):
        (tmp_path / folder).mkdir(parents=True)
    for program in ("whole/bin/hipcc", "packaged/bin/hipcc", "packaged/bin/clang++-19"):
        (tmp_path / program).touch(mode=0o755)
    for name in ("ROCM_PATH", "HIPCC"):
        monkeypatch.delenv(name, raising=False)
    whole, packaged = tmp_path / "whole" / "bin", tmp_path / "packaged" / "bin"
    monkeypatch.setenv("PATH", f"{whole}{os.pathsep}{packaged}")
    assert (build_kernels.rocm_path(), build_kernels.find_compiler()) == (tmp_path / "whole", str(whole / "hipcc"))
    monkeypatch.setenv("PATH", str(packaged))
    assert (build_kernels.rocm_path(), build_kernels.find_compiler()) == (None, str(packaged / "clang++-19"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="neither on PATH nor under ROCM_PATH"):
        build_kernels.find_compiler()
