"""opdock_rocm.linear: which GPUs multiply the 8-bit floats of checkpoints, and what the others do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from opdock.nn.quantization.kernels.scaled import TorchScaledLinear
from opdock.nn.quantization.selection import judge
from opdock.nn.quantization.spec import LinearSpec
from opdock_rocm import gpus
from opdock_rocm.linear import RocmFloat8Linear
from opdock_rocm.platform import RocmPlatform

SPEC = LinearSpec("fp8", 64, 32, torch.bfloat16, torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("gfx", "expected"),
    [
        ("gfx90a", RocmFloat8Linear),  # 9.0 is no Hopper
        ("gfx942", RocmFloat8Linear),
        ("gfx1100", RocmFloat8Linear),
        ("gfx950", TorchScaledLinear),
        ("gfx1201", TorchScaledLinear),
    ],
)
def test_torchs_product_is_taken_where_the_gpu_has_it(
    gfx: str, expected: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RocmPlatform, "get_gfx", classmethod(lambda cls, device_id=0: gfx))
    pair = gpus.capability(gfx)
    assert pair is not None
    capability = pair[0] * 10 + pair[1]
    chosen, _ = judge(SPEC, [RocmFloat8Linear, TorchScaledLinear], capability=capability)
    assert chosen is expected


def test_other_weights_are_the_hosts() -> None:
    for kind in ("int8", "mp", "fp8_block"):
        able, reason = RocmFloat8Linear.can_implement(replace(SPEC, kind=kind))
        assert not able
        assert reason == f"{kind} weights"
