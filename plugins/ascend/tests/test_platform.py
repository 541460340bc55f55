"""opdock_ascend.platform: facts and what follows from them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from opdock import OpdockConfig
from opdock.errors import ConfigError, UnsupportedError
from opdock.platforms.interface import PlatformEnum
from opdock_ascend.platform import ATTENTION, AscendPlatform, dtype_names
from opdock_ascend.priorities import PROVIDED, SECOND


@pytest.mark.parametrize(
    ("chip", "names"),
    [
        ("Ascend910B3", ["bfloat16", "float16", "float32"]),
        ("Ascend910_9382", ["bfloat16", "float16", "float32"]),
        ("Ascend310P3", ["float16", "float32"]),
        ("Ascend910A", ["float16", "float32"]),
    ],
)
def test_the_dtypes_follow_from_the_chip(chip: str, names: list[str]) -> None:
    assert dtype_names(chip) == names


def test_the_class_says_what_layers_torch_and_engines_need() -> None:
    found = AscendPlatform()
    assert found._enum is PlatformEnum.OOT
    assert found.is_out_of_tree()
    assert (found.device_type, found.dispatch_key, found.dist_backend) == ("npu", "PrivateUse1", "hccl")
    assert found.device_control_env_var == "ASCEND_RT_VISIBLE_DEVICES"
    assert found.get_device_capability() is None


def test_operators_come_first_in_eager_and_in_compiled_code() -> None:
    compiled = OpdockConfig.from_text('{"mode": 3, "backend": "opdock_eager"}')
    for config in (OpdockConfig(), compiled):
        made = AscendPlatform.get_default_ir_op_priority(config)
        for op in PROVIDED:
            assert made[op] == ["ascend", *([SECOND[op]] if op in SECOND else []), "native"]
        assert made["static_scaled_fp8_quant"] == made["all_reduce"] == ["native"]


def test_methods_of_quantisation_that_no_operator_serves_are_refused() -> None:
    for name in AscendPlatform.supported_quantization:
        AscendPlatform.verify_quantization(name)
    with pytest.raises(ConfigError, match="fp8 quantization is currently not supported in npu"):
        AscendPlatform.verify_quantization("fp8")


@pytest.mark.parametrize(
    ("asked", "dtype", "expected"),
    [
        (None, torch.float16, ATTENTION),
        (None, torch.bfloat16, ATTENTION),
        (None, torch.float32, ""),  # left to the host's own
        ("ASCEND", torch.float16, ATTENTION),
        ("ASCEND", torch.float32, ATTENTION),  # the host refuses it, with the reason
        ("SDPA", torch.float16, ""),
    ],
)
def test_the_attention_backend_is_taken_where_it_fits_and_no_other_is_asked_for(
    asked: str | None, dtype: torch.dtype, expected: str
) -> None:
    from opdock.nn.attention.backend import AttentionSelectorConfig

    config = AttentionSelectorConfig(64, dtype, "auto", 16)
    assert AscendPlatform.get_attn_backend_cls(asked, config) == expected


def test_facts_are_those_of_the_runtime(torch_npu: Any) -> None:
    assert AscendPlatform.get_device_name() == "Ascend910B3"
    assert AscendPlatform.get_device_total_memory(1) == 8 * 2**30
    assert AscendPlatform.num_compute_units() == 24
    assert AscendPlatform.get_device_uuid().count("-") == 4
    assert AscendPlatform().supported_dtypes == [torch.bfloat16, torch.float16, torch.float32]
    AscendPlatform.check_if_supports_dtype(torch.bfloat16)
    with pytest.raises(UnsupportedError, match="float64 does not run on Ascend910B3"):
        AscendPlatform.check_if_supports_dtype(torch.float64)


def test_the_current_device_and_its_memory_are_set_and_counted(torch_npu: Any) -> None:
    AscendPlatform.set_device(1)
    assert torch.npu.current_device() == 1
    before = AscendPlatform.get_current_memory_usage()
    x = torch.empty(1 << 20, device="npu")
    assert x.device == torch.device("npu", 1)
    assert AscendPlatform.get_current_memory_usage() - before >= 4 << 20
    AscendPlatform.set_device(0)
