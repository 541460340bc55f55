"""DeviceCapability, CPU architectures, hints, and what the built-in platforms say of themselves."""

from __future__ import annotations

import pytest
import torch

from opdock.errors import ConfigError
from opdock.platforms import hints
from opdock.platforms.cpu import CpuPlatform
from opdock.platforms.enums import CpuArchEnum, DeviceCapability, PlatformEnum
from opdock.platforms.interface import Platform, UnspecifiedPlatform


def test_capability_compares_with_its_kind_and_with_pairs() -> None:
    """And prints as people write it."""
    capability = DeviceCapability(9, 0)
    assert capability > DeviceCapability(8, 9) and capability >= (8, 0) and capability == (9, 0)
    assert capability != 90 and hash(capability) == hash((9, 0))
    assert (capability.as_version_str(), capability.to_int()) == ("9.0", 90)
    with pytest.raises(ValueError, match="not one digit"):
        DeviceCapability(9, 10).to_int()


class Nine(CpuPlatform):
    """A platform of capability 9.0."""

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
        return DeviceCapability(9, 0)


@pytest.mark.parametrize(("wanted", "has", "exact"), [(90, True, True), ((8, 9), True, False), (100, False, False)])
def test_capability_questions(wanted: int | tuple[int, int], has: bool, exact: bool) -> None:
    """At least, exactly, and of one family; without a capability the answer is no."""
    assert (Nine.has_device_capability(wanted), Nine.is_device_capability(wanted)) == (has, exact)
    assert Nine.is_device_capability_family(90) and not Nine.is_device_capability_family(100)
    assert not CpuPlatform.has_device_capability(wanted) and not CpuPlatform.is_device_capability(wanted)


@pytest.mark.parametrize(
    ("machine", "arch"),
    [("x86_64", "X86"), ("AMD64", "X86"), ("aarch64", "ARM"), ("armv7l", "ARM"), ("ppc64le", "POWERPC"),
     ("s390x", "S390X"), ("riscv64", "RISCV"), ("loongarch64", "OTHER"), ("", "UNKNOWN")],
)  # fmt: skip
def test_cpu_architecture_by_machine_name(machine: str, arch: str) -> None:
    """What platform.machine() prints."""
    assert CpuArchEnum.of(machine) is CpuArchEnum[arch]


def test_hints_name_hardware_without_its_package() -> None:
    """And not hardware whose package is there, or hardware that is not."""
    seen = {"/dev/nvidiactl", "/dev/kfd"}.__contains__
    assert hints.hints([], seen) == (
        "an NVIDIA GPU is here and opdock-cuda is not installed: pip install opdock-cuda",
        "an AMD GPU is here and opdock-rocm is not installed: pip install opdock-rocm",
    )
    assert hints.hints(["Opdock_CUDA", "opdock-rocm"], seen) == ()
    assert hints.hints([], lambda _: False) == ()


@pytest.mark.parametrize("kind", list(PlatformEnum))
def test_exactly_one_question_of_kind_is_yes(kind: PlatformEnum) -> None:
    """is_cuda and its like follow the enum."""
    platform = type("P", (Platform,), {"_enum": kind, "device_name": "p", "device_type": "cpu"})()
    questions = ("cuda", "rocm", "tpu", "xpu", "cpu", "out_of_tree", "unspecified")
    assert sum(getattr(platform, f"is_{q}")() for q in questions) == 1
    assert platform.is_cuda_alike() is (kind in (PlatformEnum.CUDA, PlatformEnum.ROCM))


def test_quantisation_is_refused_only_where_a_list_leaves_it_out() -> None:
    """An empty list allows everything."""
    CpuPlatform.verify_quantization("anything")
    limited = type("P", (CpuPlatform,), {"supported_quantization": ["fp8", "awq"]})
    limited.verify_quantization("fp8")
    with pytest.raises(ConfigError, match="gptq quantization is currently not supported in cpu"):
        limited.verify_quantization("gptq")


def test_the_cpu_platform_speaks_for_the_cpu() -> None:
    """Its dtypes, its key, its memory."""
    platform = CpuPlatform()
    assert platform.supported_dtypes[0] is torch.bfloat16 and platform.dispatch_key == "CPU"
    assert platform.get_device_total_memory() > 1 << 20 and platform.num_compute_units() >= 1
    with platform.inference_mode():
        assert torch.is_inference_mode_enabled()


def test_unspecified_platform_names_no_device() -> None:
    """Native methods, wherever tensors are."""
    assert (UnspecifiedPlatform().device_type, UnspecifiedPlatform().is_unspecified()) == ("", True)
