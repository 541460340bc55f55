"""Linear layers with 8-bit floats: which GPUs multiply those of checkpoints, and what the others do."""

from __future__ import annotations

import pytest
import torch

from opdock.nn.kernels import triton
from opdock.nn.quantization.selection import explain_linear_kernel
from opdock.nn.quantization.spec import LinearSpec
from opdock.platforms import current
from opdock_rocm import gpus
from opdock_rocm.platform import RocmPlatform

SPEC = LinearSpec("fp8", 64, 32, torch.bfloat16, torch.float8_e4m3fn)
NOT_ITS_OWN = "float8_e4m3fn is not the fp8 of these GPUs"
NONE = "these GPUs do not multiply fp8"


@pytest.mark.parametrize(
    ("gfx", "reason"),
    [
        ("gfx90a", NONE),  # 9.0 is no Hopper
        ("gfx942", NOT_ITS_OWN),
        ("gfx950", ""),
        ("gfx1100", NONE),
        ("gfx1201", ""),
    ],
)
def test_torchs_product_is_taken_where_the_gpu_has_it(gfx: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RocmPlatform, "get_gfx", classmethod(lambda cls, device_id=0: gfx))
    monkeypatch.setattr(triton, "why_not", lambda: "")
    monkeypatch.setattr(triton, "interpreted", lambda: False)
    assert gpus.capability(gfx) is not None
    with current.override(RocmPlatform()):
        chosen, verdicts = explain_linear_kernel(SPEC)
    said = {verdict.kernel: verdict.reason for verdict in verdicts}
    assert said["TritonScaledLinear"] == NOT_ITS_OWN
    assert said["TorchScaledLinear"] == reason
    assert chosen.__name__ == ("NativeScaledLinear" if reason else "TorchScaledLinear")
