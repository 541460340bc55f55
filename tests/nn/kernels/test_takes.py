"""Which arguments the Triton kernels take: decided without Triton, and without data."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from opdock.nn.kernels import triton
from opdock.nn.kernels.triton import layout, takes


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are interpreted, on CPU tensors."""
    monkeypatch.setattr(takes, "_ON_CPU", True)


X, W, S = torch.zeros(3, 64), torch.zeros(64), torch.zeros(1)
TAKEN: list[tuple[str, tuple[Any, ...]]] = [
    ("rms_norm", (X, W, 1e-5)),
    ("rms_norm", (X, None, 1e-5, 32)),
    ("rms_norm", (X.half(), W, 1e-5)),
    ("rms_norm", (torch.zeros(3, 160)[:, 1:65], W, 1e-5)),
    ("rms_norm", (torch.zeros(2, 3, 64).transpose(0, 1), W, 1e-5)),
    ("fused_add_rms_norm", (X, X, W, 1e-5)),
    ("static_scaled_fp8_quant", (torch.zeros(()), S)),
    ("rotary_embedding", (torch.zeros(3, dtype=torch.int32), X, X, 32, torch.zeros(9, 16))),
]
REFUSED: list[tuple[str, tuple[Any, ...], str]] = [
    ("rms_norm", (X.double(), W, 1e-5), "no kernel for x of torch.float64"),
    ("rms_norm", (X, W.double(), 1e-5), "no kernel for weight of torch.float64"),
    ("rms_norm", (X, W[:32], 1e-5), "weight of shape (32,) does not fit rows of 64"),
    ("rms_norm", (X, torch.zeros(128)[::2], 1e-5), "weight has stride 2, not 1"),
    ("rms_norm", (X, W, 1e-5, 65), "variance_size 65 is not between 1 and the hidden size 64"),
    ("rms_norm", (torch.zeros(64, 3).t(), W, 1e-5), "the last dimension has stride 3, not 1"),
    ("rms_norm", (torch.zeros(64).expand(3, 64), W, 1e-5), "rows share memory"),
    ("rms_norm", (torch.zeros(1, 32769), None, 1e-5), "rows of 32769: at most 32768 fit into one program"),
    ("rms_norm", (torch.zeros(4, 3, 2, 64).permute(2, 1, 0, 3), W, 1e-5), "rows lie along more than two strides"),
    ("fused_add_rms_norm", (X, X.half(), W, 1e-5), "x_residual of torch.float16 cannot hold the sum in torch.float32"),
    ("fused_add_rms_norm", (X, X[:1], W, 1e-5), "x_residual of shape (1, 64), x of (3, 64)"),
    ("silu_and_mul", (torch.zeros(3, 65),), "has no halves"),
    ("gelu_and_mul", (X, "sigmoid"), "approximate='sigmoid' is neither none nor tanh"),
    ("static_scaled_fp8_quant", (X, S.half()), "scale of torch.float16 and shape (1,) is not one float32"),
    ("static_scaled_fp8_quant", (X, S, torch.int8), "torch.int8 is no 8-bit float"),
    ("dynamic_per_token_scaled_fp8_quant", (X, W), "scale_ub of torch.float32 and shape (64,) is not one float32"),
    ("rotary_embedding", (torch.zeros(3), X, X, 32, torch.zeros(9, 16)), "positions of torch.float32"),
    ("rotary_embedding", (torch.zeros(3).long(), X, X.half(), 32, torch.zeros(9, 16)), "key of torch.float16"),
    ("rotary_embedding", (torch.zeros(3).long(), X, X, 32, torch.zeros(9, 48)), "rot_dim 48 does not fit"),
    ("rotary_embedding", (torch.zeros(3).long(), X, X, 48, torch.zeros(9, 16)), "has no heads of 48"),
]


@pytest.mark.parametrize(("name", "args"), TAKEN)
@pytest.mark.usefixtures("on_cpu")
def test_arguments_that_a_kernel_takes(name: str, args: tuple[Any, ...]) -> None:
    assert getattr(takes, name)(*args) is True


@pytest.mark.parametrize(("name", "args", "reason"), REFUSED)
@pytest.mark.usefixtures("on_cpu")
def test_arguments_that_it_does_not_take_get_a_reason(name: str, args: tuple[Any, ...], reason: str) -> None:
    said = getattr(takes, name)(*args)
    assert isinstance(said, str)
    assert reason in said


@pytest.mark.skipif(triton.interpreted(), reason="CPU tensors are taken in the interpreter")
def test_a_cpu_tensor_is_refused_where_kernels_are_compiled() -> None:
    assert takes.rms_norm(X, W, 1e-5) == "x is on cpu"


def test_rows_merge_into_the_fewest_strides() -> None:
    assert layout.split_rows(torch.zeros(2, 3, 8)) == (6, None, [(8, None)])
    assert layout.split_rows(torch.zeros(2, 3, 16)[..., :8]) == (6, None, [(16, None)])
    assert layout.split_rows(torch.zeros(3, 2, 8).transpose(0, 1)) == (6, 3, [(8, 16)])
    assert layout.split_rows(torch.zeros(2, 3, 8), torch.zeros(3, 2, 8).transpose(0, 1)) == (6, 3, [(24, 8), (8, 16)])
    assert layout.split_rows(torch.zeros(1, 99)[:, :8]) == (1, None, [(8, None)])


def test_importing_the_kernels_imports_no_triton() -> None:
    code = (
        "import sys, opdock.nn.kernels.triton.takes, opdock.nn.kernels.triton as k\n"
        "assert 'triton' not in sys.modules\n"
        "sys.modules['triton'] = None\n"
        "print(k.why_not())"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "triton is not installed: pip install 'opdock[triton]'"
