"""opdock_cuda.probe: three outcomes, each in words."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from opdock.errors import PlatformError
from opdock_cuda import nvml
from opdock_cuda.probe import is_jetson, judge
from opdock_cuda.torch_build import Build

CUDA_BUILD = Build("2.11.0+cu130", "13.0", None)
CPU_BUILD = Build("2.13.0+cpu", None, None)
ROCM_BUILD = Build("2.13.0+rocm7.1", None, "7.1")


def _fails(text: str, *, absent: bool = False) -> Callable[[], int]:
    def count() -> int:
        raise nvml.Failure(text, absent=absent)

    return count


def test_a_gpu_with_a_cuda_build_of_pytorch_is_usable() -> None:
    assert judge(lambda: 1, CUDA_BUILD, {}) is None


@pytest.mark.parametrize(
    ("count", "build", "environ", "reason"),
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
        (lambda: 0, CUDA_BUILD, {}, "the NVIDIA driver is loaded and sees no GPU"),
        (lambda: 2, CPU_BUILD, {}, "NVML sees 2 GPUs, and PyTorch 2.13.0+cpu is built without CUDA"),
        (lambda: 1, ROCM_BUILD, {}, "NVML sees 1 GPU, and PyTorch 2.13.0+rocm7.1 is built for ROCm 7.1"),
        (lambda: 1, None, {}, "NVML sees 1 GPU, and PyTorch is not installed"),
        (
            lambda: 8,
            CUDA_BUILD,
            {"CUDA_VISIBLE_DEVICES": ""},
            "NVML sees 8 GPUs, and CUDA_VISIBLE_DEVICES='' hides all",
        ),
        (
            lambda: 8,
            CUDA_BUILD,
            {"CUDA_VISIBLE_DEVICES": "-1"},
            "NVML sees 8 GPUs, and CUDA_VISIBLE_DEVICES='-1' hides",
        ),
    ],
)
def test_the_probe_declines_with_what_it_saw(
    count: Callable[[], int], build: Build | None, environ: dict[str, str], reason: str
) -> None:
    found = judge(count, build, environ)
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
