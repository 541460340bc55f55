"""opdock_tpu.platform: facts and what follows from them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from opdock import OpdockConfig
from opdock.errors import ConfigError, UnsupportedError
from opdock.platforms.interface import PlatformEnum
from opdock_tpu.platform import ATTENTION, TpuPlatform
from opdock_tpu.priorities import PROVIDED


def test_the_class_says_what_layers_torch_and_engines_need() -> None:
    found = TpuPlatform()
    assert found._enum is PlatformEnum.TPU
    assert found.is_tpu()
    assert not found.is_out_of_tree()
    assert (found.device_type, found.dispatch_key) == ("jax", "PrivateUse1")
    assert found.device_control_env_var == "TPU_VISIBLE_CHIPS"
    assert found.get_device_capability() is None
    assert not found.is_pin_memory_available()
    assert found.supported_dtypes == [torch.bfloat16, torch.float32]


def test_kernels_come_first_op_by_op_and_other_ops_are_native() -> None:
    made = TpuPlatform.get_default_ir_op_priority(OpdockConfig())
    for op in PROVIDED:
        assert made[op] == ["pallas", "native"]
    assert made["silu_and_mul"] == made["rotary_embedding"] == ["native"]


def test_methods_of_quantisation_that_nothing_serves_are_refused() -> None:
    for name in TpuPlatform.supported_quantization:
        TpuPlatform.verify_quantization(name)
    with pytest.raises(ConfigError, match="fp8 quantization is currently not supported in tpu"):
        TpuPlatform.verify_quantization("fp8")


def test_float16_is_refused_with_what_runs() -> None:
    TpuPlatform.check_if_supports_dtype(torch.bfloat16)
    with pytest.raises(UnsupportedError, match="float16 does not run on TPUs"):
        TpuPlatform.check_if_supports_dtype(torch.float16)


@pytest.mark.parametrize(
    ("asked", "dtype", "expected"),
    [
        (None, torch.bfloat16, ATTENTION),
        (None, torch.float32, ATTENTION),
        (None, torch.float16, ""),  # left to the host's own
        ("PALLAS", torch.bfloat16, ATTENTION),
        ("PALLAS", torch.float16, ATTENTION),  # the host refuses it, with the reason
        ("NATIVE", torch.bfloat16, ""),
    ],
)
def test_the_attention_backend_is_taken_where_it_fits_and_no_other_is_asked_for(
    asked: str | None, dtype: torch.dtype, expected: str
) -> None:
    from opdock.nn.attention.backend import AttentionSelectorConfig

    config = AttentionSelectorConfig(128, dtype, "auto", 16)
    assert TpuPlatform.get_attn_backend_cls(asked, config) == expected


@pytest.mark.usefixtures("torchax")
def test_layers_bind_forward_tpu() -> None:
    program = """
import opdock
from opdock import OpdockConfig
with opdock.set_current_config(OpdockConfig.from_text('{"custom_ops": ["all"]}')):
    from opdock.registry import CustomOp
    @CustomOp.register("one_of_a_test")
    class Layer(CustomOp):
        def forward_native(self, x):
            return "native"
        def forward_tpu(self, x):
            return "tpu"
    print(Layer()(1))
"""
    environ = {**os.environ, "OPDOCK_PLATFORM": "tpu"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environ)
    assert done.stdout == "tpu\n", done.stderr


def test_facts_are_those_of_xlas_client(activated: None) -> None:
    assert TpuPlatform.get_device_name() == "cpu"
    with pytest.raises(UnsupportedError, match="XLA keeps no account of the memory of cpu"):
        TpuPlatform.get_device_total_memory()


def test_the_same_seed_gives_the_same_numbers(activated: None) -> None:
    from opdock_tpu import xla

    made = []
    for _ in range(2):
        TpuPlatform.manual_seed_all(7)
        with xla.enabled():
            made.append(torch.randn(5, device="jax").cpu())
    assert torch.equal(*made)
