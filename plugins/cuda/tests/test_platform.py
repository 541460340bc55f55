"""opdock_cuda.platform: facts and what follows from them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from opdock.errors import UnsupportedError
from opdock.platforms.interface import DeviceCapability, PlatformEnum
from opdock_cuda import nvml, platform
from opdock_cuda.platform import CudaPlatform, dtype_names

H200 = nvml.Facts("NVIDIA H200", "GPU-h200", 150 * 2**30, (9, 0))
T4 = nvml.Facts("Tesla T4", "GPU-t4", 16 * 2**30, (7, 5))
P4 = nvml.Facts("Tesla P4", "GPU-p4", 8 * 2**30, (5, 2))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[nvml.Facts]]:
    """A made-up machine: the list of its GPUs, empty at first."""
    gpus: list[nvml.Facts] = []
    monkeypatch.setattr(nvml, "all_facts", lambda: gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    platform._read.cache_clear()
    yield gpus
    platform._read.cache_clear()


@pytest.mark.parametrize(
    ("capability", "names"),
    [
        ((9, 0), ["bfloat16", "float16", "float32"]),
        ((8, 0), ["bfloat16", "float16", "float32"]),
        ((7, 5), ["float16", "float32"]),
        ((6, 0), ["float16", "float32"]),
        ((5, 2), ["float32"]),
        (None, ["float32"]),
    ],
)
def test_the_dtypes_follow_from_the_capability(capability: tuple[int, int] | None, names: list[str]) -> None:
    assert dtype_names(capability) == names


def test_the_class_says_what_layers_torch_and_engines_need() -> None:
    found = CudaPlatform()
    assert found._enum is PlatformEnum.CUDA
    assert found.is_cuda()
    assert found.is_cuda_alike()
    assert (found.device_type, found.dispatch_key, found.dist_backend) == ("cuda", "CUDA", "nccl")
    assert found.device_control_env_var == "CUDA_VISIBLE_DEVICES"


def test_facts_are_those_of_the_gpu_that_torch_counts(
    machine: list[nvml.Facts], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine += [H200, T4]
    assert CudaPlatform.get_device_capability() == DeviceCapability(9, 0)
    assert CudaPlatform.get_device_name(1) == "Tesla T4"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-t4,GPU-h200")
    assert CudaPlatform.get_device_uuid() == "GPU-t4"
    assert CudaPlatform.get_device_total_memory(1) == 150 * 2**30
    assert CudaPlatform().supported_dtypes == [torch.float16, torch.float32]


def test_fp8_starts_with_capability_8_9(machine: list[nvml.Facts]) -> None:
    machine.append(H200)
    assert CudaPlatform.supports_fp8()
    machine[0] = T4
    platform._read.cache_clear()
    assert not CudaPlatform.supports_fp8()


def test_a_dtype_that_the_gpu_lacks_is_refused_with_those_that_it_has(machine: list[nvml.Facts]) -> None:
    machine.append(P4)
    CudaPlatform.check_if_supports_dtype(torch.float32)
    with pytest.raises(UnsupportedError) as caught:
        CudaPlatform.check_if_supports_dtype(torch.bfloat16)
    assert "bfloat16 does not run on Tesla P4" in str(caught.value)
    assert "5.2" in str(caught.value)
    assert "Remedy: use dtype float32." in str(caught.value)


def test_unequal_gpus_in_cudas_own_order_are_warned_about(
    machine: list[nvml.Facts], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    machine += [T4, H200]
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    CudaPlatform.log_warnings()
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in caplog.text
    caplog.clear()
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    CudaPlatform.log_warnings()
    assert caplog.text == ""


@pytest.mark.gpu
def test_nvml_and_torch_agree_about_the_gpu(gpu: None) -> None:
    platform._read.cache_clear()
    found = torch.cuda.get_device_properties(0)
    assert CudaPlatform.get_device_name() == found.name
    assert CudaPlatform.get_device_capability() == (found.major, found.minor)
    assert abs(CudaPlatform.get_device_total_memory() - found.total_memory) < 0.05 * found.total_memory
    assert CudaPlatform.get_device_uuid() == platform._read_torch(0).uuid
    assert CudaPlatform.num_compute_units() == found.multi_processor_count


@pytest.mark.gpu
def test_seeding_makes_the_gpus_numbers_repeat(gpu: None) -> None:
    CudaPlatform.set_device(0)
    CudaPlatform.manual_seed_all(7)
    first = torch.rand(4, device="cuda")
    CudaPlatform.manual_seed_all(7)
    assert torch.equal(first, torch.rand(4, device="cuda"))
