"""opdock_cuda.probe: three outcomes, each in words."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest

from opdock.errors import PlatformError
from opdock_cuda import nvml
from opdock_cuda.probe import is_jetson, judge
from opdock_cuda.torch_build import Build

CUDA_BUILD = Build("2.11.0+cu130", "13.0", None)
CPU_BUILD = Build("2.13.0+cpu", None, None)
ROCM_BUILD = Build("2.13.0+rocm7.1", None, "7.1")


def _fails(text: str, *, absent: bool = False) -> Callable[[], Sequence[nvml.Facts]]:
    def read() -> Sequence[nvml.Facts]:
        raise nvml.Failure(text, absent=absent)

    return read


def _sees(count: int) -> Callable[[], Sequence[nvml.Facts]]:
    return lambda: [nvml.Facts("NVIDIA H200", f"GPU-{i}", 2**37, (9, 0)) for i in range(count)]


def test_a_gpu_with_a_cuda_build_of_pytorch_is_usable() -> None:
    assert judge(_sees(1), CUDA_BUILD, {}) is None


@pytest.mark.parametrize(
    ("read", "build", "environ", "reason"),
    [
        (
            _fails("NVML Shared Library Not Found", absent=True),
            CUDA_BUILD,
            {},
            "no NVIDIA driver: NVML says 'NVML Shared",
        ),
        (
            _fails("Driver Not Loaded", absent=True),
            CPU_BUILD,
            {},
            "no NVIDIA driver: NVML says 'Driver Not Loaded'",
        ),
        (_sees(0), CUDA_BUILD, {}, "the NVIDIA driver is loaded and sees no GPU"),
        (_sees(2), CPU_BUILD, {}, "NVML sees 2 GPUs, and PyTorch 2.13.0+cpu is built without CUDA"),
        (_sees(1), ROCM_BUILD, {}, "NVML sees 1 GPU, and PyTorch 2.13.0+rocm7.1 is built for ROCm 7.1"),
        (_sees(1), None, {}, "NVML sees 1 GPU, and PyTorch is not installed"),
        (
            _sees(8),
            CUDA_BUILD,
            {"CUDA_VISIBLE_DEVICES": ""},
            "NVML sees 8 GPUs, and CUDA_VISIBLE_DEVICES='' hides all",
        ),
        (
            _sees(8),
            CUDA_BUILD,
            {"CUDA_VISIBLE_DEVICES": "-1"},
            "NVML sees 8 GPUs, and CUDA_VISIBLE_DEVICES='-1' hides",
        ),
        (
            _sees(1),
            CUDA_BUILD,
            {"CUDA_VISIBLE_DEVICES": "GPU-zz"},
            "NVML sees 1 GPU, and CUDA_VISIBLE_DEVICES='GPU-zz' hides all of them: 'GPU-zz' names no GPU here",
        ),
        (
            _sees(1),
            CUDA_BUILD,
            {"CUDA_VISIBLE_DEVICES": "MIG-1234"},
            "NVML sees 1 GPU, and CUDA_VISIBLE_DEVICES='MIG-1234' hides all of them",
        ),
    ],
)
def test_the_probe_declines_with_what_it_saw(
    read: Callable[[], Sequence[nvml.Facts]], build: Build | None, environ: dict[str, str], reason: str
) -> None:
    found = judge(read, build, environ)
    assert found is not None
    assert found.startswith(reason)


def test_a_broken_driver_is_an_error_and_never_a_silent_run_on_the_cpu() -> None:
    with pytest.raises(PlatformError) as caught:
        judge(_fails("Driver/library version mismatch"), CUDA_BUILD, {})
    assert "Driver/library version mismatch" in str(caught.value)
    assert "Remedy: " in str(caught.value)


def test_a_jetson_is_usable_although_its_nvml_fails() -> None:
    assert judge(_fails("Not Supported"), CUDA_BUILD, {}, jetson=True) is None
    assert judge(_fails("no library", absent=True), CUDA_BUILD, {}, jetson=True) is None
    assert judge(_fails("x"), CUDA_BUILD, {"CUDA_VISIBLE_DEVICES": "0"}, jetson=True) is None
    assert "hides all" in str(judge(_fails("x"), CUDA_BUILD, {"CUDA_VISIBLE_DEVICES": "-1"}, jetson=True))
    assert "a Jetson GPU is here, and PyTorch" in str(judge(_fails("x"), CPU_BUILD, {}, jetson=True))


def test_a_jetson_is_told_by_its_release_file_or_its_firmware_folder() -> None:
    assert is_jetson({"/etc/nv_tegra_release"}.__contains__)
    assert is_jetson({"/sys/class/tegra-firmware"}.__contains__)
    assert not is_jetson(lambda path: False)


def test_the_probe_imports_no_torch_and_leaves_cuda_alone() -> None:
    """In a fresh process: neither the entry point's module nor the probe may load torch."""
    program = (
        "import sys, opdock_cuda, opdock_cuda.probe as p\n"
        "from opdock.errors import PlatformError\n"
        "try: p.probe()\n"
        "except PlatformError: pass\n"
        "assert 'torch' not in sys.modules\n"
        "assert 'opdock_cuda.platform' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
def test_the_probe_does_not_initialise_cuda_so_a_forked_child_can(gpu: None) -> None:
    program = (
        "import os, sys, opdock_cuda.probe as p\n"
        "assert p.probe() is None\n"
        "import torch\n"
        "assert not torch.cuda.is_initialized()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(0 if torch.ones(2, device='cuda').sum().item() == 2 else 1)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
def test_the_probe_and_the_facts_leave_the_driver_untouched(gpu: None) -> None:
    """The driver answers 3, not initialised, to a process that has not called cuInit, so it has no context."""
    program = (
        "import ctypes, torch\n"
        "import opdock_cuda.probe as p\n"
        "from opdock_cuda.platform import CudaPlatform as C\n"
        "driver, number = ctypes.CDLL('libcuda.so.1'), ctypes.c_int()\n"
        "C.get_device_uuid()\n"
        "assert p.probe() is None\n"
        "facts = C.get_device_name(), C.get_device_capability(), C.get_device_total_memory(), C().supported_dtypes\n"
        "C.check_if_supports_dtype(torch.bfloat16), C.supports_fp8(), C.log_warnings()\n"
        "import opdock\n"
        "assert opdock.current_platform.device_name == 'cuda'\n"  # activated: kernels and providers are there
        "assert not torch.cuda.is_initialized()\n"
        "assert driver.cuDeviceGetCount(ctypes.byref(number)) == 3, 'cuInit was called'\n"
        "kept = torch.ones(2, device='cuda')\n"
        "assert driver.cuDeviceGetCount(ctypes.byref(number)) == 0, 'the control: now it was'\n"
        "print(facts)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
