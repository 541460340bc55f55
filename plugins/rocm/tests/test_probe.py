"""opdock_rocm.probe: three outcomes, each in words."""

from __future__ import annotations

import subprocess
import sys

import pytest

from opdock.errors import PlatformError
from opdock_rocm import wsl
from opdock_rocm.gpus import Facts
from opdock_rocm.probe import Seen, judge
from opdock_rocm.torch_build import Build

HIP_BUILD = Build("2.13.0+rocm7.1", None, "7.1.25424")
CUDA_BUILD = Build("2.11.0+cu130", "13.0", None)
CPU_BUILD = Build("2.13.0+cpu", None, None)


def _gpus(count: int) -> Seen:
    return Seen(tuple(Facts("AMD Instinct MI300X", f"GPU-{i:016x}", 2**37, "gfx942", 304) for i in range(count)))


def test_a_gpu_with_a_rocm_build_of_pytorch_is_usable() -> None:
    assert judge(_gpus(1), HIP_BUILD, {}) is None
    assert judge(_gpus(8), HIP_BUILD, {"HIP_VISIBLE_DEVICES": "7"}) is None


@pytest.mark.parametrize(
    ("seen", "build", "environ", "reason"),
    [
        (Seen(failure="no AMD GPU: no driver"), HIP_BUILD, {}, "no AMD GPU: no driver"),
        (_gpus(0), HIP_BUILD, {}, "no AMD GPU: amdsmi sees none"),
        (
            _gpus(2),
            CPU_BUILD,
            {},
            "amdsmi sees 2 GPUs, and PyTorch 2.13.0+cpu is built without HIP: install a ROCm build of it",
        ),
        (
            _gpus(1),
            CUDA_BUILD,
            {},
            "amdsmi sees 1 GPU, and PyTorch 2.11.0+cu130 is built for CUDA 13.0: install a ROCm build of it",
        ),
        (_gpus(1), None, {}, "amdsmi sees 1 GPU, and PyTorch is not installed"),
        (
            _gpus(8),
            HIP_BUILD,
            {"HIP_VISIBLE_DEVICES": ""},
            "amdsmi sees 8 GPUs, and HIP_VISIBLE_DEVICES='' hides all of them",
        ),
    ],
)
def test_a_gpu_that_cannot_be_used_is_declined_with_the_reason(
    seen: Seen, build: Build | None, environ: dict[str, str], reason: str
) -> None:
    assert judge(seen, build, environ) == reason


@pytest.mark.parametrize(
    "failure", ["no answer within 10 s", "Error code: 9 | AMDSMI_STATUS_DRM_ERROR", "ended with signal 11"]
)
def test_a_broken_driver_is_an_error_and_never_a_silent_run_on_the_cpu(failure: str) -> None:
    with pytest.raises(PlatformError) as caught:
        judge(Seen(failure=failure, broken=True), HIP_BUILD, {})
    assert failure in str(caught.value)
    assert "Remedy: see what amd-smi list says; OPDOCK_PLATFORM=cpu" in str(caught.value)


def test_variables_that_contradict_one_another_are_an_error_on_a_machine_with_a_gpu_alone() -> None:
    environ = {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}
    with pytest.raises(PlatformError, match="HIP_VISIBLE_DEVICES='0' and CUDA_VISIBLE_DEVICES='1'"):
        judge(_gpus(2), HIP_BUILD, environ)
    assert judge(_gpus(2), CUDA_BUILD, environ) is not None
    assert judge(Seen(failure="no AMD GPU"), HIP_BUILD, environ) == "no AMD GPU"


def test_under_wsl_the_runtime_has_read_the_variables_already() -> None:
    seen = Seen((Facts("AMD Radeon PRO W7900"),), wsl.RUNTIME)
    assert judge(seen, HIP_BUILD, {"HIP_VISIBLE_DEVICES": "1"}) is None


def test_the_probe_imports_neither_torch_nor_amdsmi_nor_the_platform() -> None:
    program = (
        "import sys, opdock_rocm, opdock_rocm.probe as p\n"
        "from opdock.errors import PlatformError\n"
        "try: p.probe()\n"
        "except PlatformError: pass\n"
        "assert not {'torch', 'amdsmi', 'opdock_rocm.platform'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
