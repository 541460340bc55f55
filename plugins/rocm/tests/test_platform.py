"""opdock_rocm.platform: facts and what follows from them."""

from __future__ import annotations

import pytest
import torch

from opdock import OpdockConfig
from opdock.errors import ConfigError, UnsupportedError
from opdock.nn.attention.backend import AttentionSelectorConfig
from opdock.nn.kernels import triton
from opdock.platforms.interface import DeviceCapability, PlatformEnum
from opdock_rocm import attention_choice, platform
from opdock_rocm.attention import RocmAttentionBackend
from opdock_rocm.gpus import Facts
from opdock_rocm.platform import RocmPlatform
from opdock_rocm.priorities import BY_AITER, LEFT_TO_INDUCTOR, PROVIDED
from opdock_rocm.probe import Seen

MI300X = Facts("AMD Instinct MI300X", "GPU-0000000000000001", 192 << 30, "gfx942", 304)
MI355X = Facts("AMD Instinct MI355X", "GPU-0000000000000002", 288 << 30, "gfx950", 256)
MI250 = Facts("AMD Instinct MI250", "GPU-0000000000000003", 64 << 30, "gfx90a", 104)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with three GPUs, as the driver would list them."""
    for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    platform._read.cache_clear()
    monkeypatch.setattr("opdock_rocm.probe.look", lambda: Seen((MI300X, MI355X, MI250)))


def test_the_class_says_what_layers_torch_and_engines_need() -> None:
    found = RocmPlatform()
    assert found._enum is PlatformEnum.ROCM
    assert found.is_rocm()
    assert found.is_cuda_alike()
    assert not found.is_out_of_tree()
    assert (found.device_type, found.dispatch_key, found.dist_backend) == ("cuda", "CUDA", "nccl")
    assert found.device_control_env_var == "HIP_VISIBLE_DEVICES"
    assert found.supported_dtypes == [torch.bfloat16, torch.float16, torch.float32]


@pytest.mark.usefixtures("machine")
def test_facts_are_the_drivers_in_the_order_that_the_variables_give(monkeypatch: pytest.MonkeyPatch) -> None:
    assert RocmPlatform.get_device_capability() == DeviceCapability(9, 4)
    assert RocmPlatform.get_device_name(1) == "AMD Instinct MI355X"
    assert RocmPlatform.get_device_uuid(2) == "GPU-0000000000000003"
    assert RocmPlatform.get_device_total_memory() == 192 << 30
    assert RocmPlatform.num_compute_units() == 304
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "2")
    assert RocmPlatform.get_gfx() == "gfx90a"


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("visible", "fnuz", "dtype", "multiplies"),
    [
        ("0", True, torch.float8_e4m3fnuz, True),
        ("1", False, torch.float8_e4m3fn, True),
        ("2", False, torch.float8_e4m3fn, False),
    ],
)
def test_the_8_bit_float_is_the_chips(
    visible: str, fnuz: bool, dtype: torch.dtype, multiplies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", visible)
    assert RocmPlatform.is_fp8_fnuz() is fnuz
    assert RocmPlatform.fp8_dtype() is dtype
    assert RocmPlatform.supports_fp8() is multiplies


@pytest.mark.usefixtures("machine")
def test_a_dtype_that_no_model_runs_in_is_refused() -> None:
    RocmPlatform.check_if_supports_dtype(torch.bfloat16)
    with pytest.raises(UnsupportedError, match="float64 does not run on AMD Instinct MI300X"):
        RocmPlatform.check_if_supports_dtype(torch.float64)


def test_where_no_gpu_can_be_used_there_are_no_facts_and_no_driver_is_started() -> None:
    platform._read.cache_clear()
    assert RocmPlatform.get_gfx() == ""
    assert RocmPlatform.get_device_capability() is None
    assert RocmPlatform.fp8_dtype() is torch.float8_e4m3fn


def test_kernels_come_first_but_for_what_inductor_does_as_well() -> None:
    eager = RocmPlatform.get_default_ir_op_priority(OpdockConfig())
    compiled = RocmPlatform.get_default_ir_op_priority(OpdockConfig.from_text('{"mode": 3, "backend": "inductor"}'))
    for op in PROVIDED:
        order = [*(["aiter"] if op in BY_AITER else []), "hip", "triton", "native"]
        assert eager[op] == order
        assert compiled[op] == (["native"] if op in LEFT_TO_INDUCTOR else order)
    assert eager["all_reduce"] == ["native"]


def test_methods_of_quantisation_that_the_host_has_are_taken_and_others_refused() -> None:
    for name in RocmPlatform.supported_quantization:
        RocmPlatform.verify_quantization(name)
    with pytest.raises(ConfigError, match="mxfp4 quantization is currently not supported in rocm"):
        RocmPlatform.verify_quantization("mxfp4")


@pytest.mark.parametrize(
    ("asked", "gfx", "dtype", "cache", "expected"),
    [
        (None, "gfx942", torch.bfloat16, "auto", attention_choice.PATH),
        (None, "gfx942", torch.bfloat16, "fp8_e4m3", attention_choice.PATH),
        (None, "gfx90a", torch.float32, "auto", attention_choice.PATH),
        (None, "gfx90a", torch.bfloat16, "auto", attention_choice.PATH),
        (None, "gfx1100", torch.float16, "auto", attention_choice.PATH),
        (None, "gfx942", torch.float64, "auto", attention_choice.SDPA),
        (None, "gfx90a", torch.float32, "fp8_e4m3", attention_choice.SDPA),
        ("ROCM_ATTN", "gfx90a", torch.bfloat16, "fp8_e4m3", attention_choice.PATH),  # the host refuses it
        ("SDPA", "gfx942", torch.bfloat16, "auto", ""),
    ],
)
def test_the_attention_backend_is_taken_where_it_fits_and_no_other_is_asked_for(
    asked: str | None, gfx: str, dtype: torch.dtype, cache: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton, "why_not", lambda: "")
    config = AttentionSelectorConfig(128, dtype, cache, 16)
    assert attention_choice.choose(asked, config, lambda: gfx) == expected


def test_an_8_bit_cache_is_refused_with_the_reason_where_the_gpu_has_no_8_bit_floats() -> None:
    config = AttentionSelectorConfig(128, torch.bfloat16, "fp8_e4m3", 16)
    for capability, reasons in (
        (DeviceCapability(9, 0), ["gfx90 has no instructions for 8-bit floats"]),
        (DeviceCapability(11, 0), ["gfx110 has no instructions for 8-bit floats"]),
        (DeviceCapability(9, 4), []),
        (DeviceCapability(9, 5), []),
        (DeviceCapability(12, 0), []),
    ):
        assert RocmAttentionBackend.validate_configuration(config, capability) == reasons
    plain = config._replace(kv_cache_dtype="auto")
    assert RocmAttentionBackend.validate_configuration(plain, DeviceCapability(9, 0)) == []


def test_without_triton_the_choice_of_attention_is_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "why_not", lambda: "triton is not installed")
    config = AttentionSelectorConfig(128, torch.bfloat16, "auto", 16)
    assert attention_choice.choose(None, config, lambda: "gfx942") == ""
    assert attention_choice.choose(None, None, lambda: "gfx942") == ""
