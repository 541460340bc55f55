"""The kernels on a GPU: values, batch invariance, and as a part of compiled code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from opdock.ir import ops
from opdock.nn.kernels import triton
from opdock.nn.kernels.triton import takes
from opdock.testing import oracle

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use; none is here"),
    pytest.mark.skipif(bool(triton.why_not()), reason=f"needs Triton: {triton.why_not()}"),
    pytest.mark.skipif(triton.interpreted(), reason="kernels that are interpreted do not run on a GPU"),
]


def _calls(tokens: int, hidden: int, dtype: torch.dtype) -> list[tuple[Any, ...]]:
    torch.manual_seed(0)
    x, r, gate = (torch.randn(tokens, n, dtype=dtype, device="cuda") for n in (hidden, hidden, 2 * hidden))
    w, scale = torch.randn(hidden, dtype=dtype, device="cuda"), torch.tensor([0.02], device="cuda")
    if tokens > 8:
        x[3, 5], x[4, 6], x[5] = float("nan"), float("inf"), 0.0
    return [
        ("rms_norm", x, w, 1e-5),
        ("fused_add_rms_norm", x.clone(), r.clone(), w, 1e-5),
        ("rms_norm_static_fp8_quant", x, w, scale, 1e-5),
        ("rms_norm_dynamic_per_token_fp8_quant", x, w, 1e-5),
        ("fused_add_rms_norm_static_fp8_quant", x, r, w, scale, 1e-5),
        ("fused_add_rms_norm_dynamic_per_token_fp8_quant", x, r, w, 1e-5),
        ("silu_and_mul", gate),
        ("gelu_and_mul", gate, "none"),
        ("gelu_and_mul", gate, "tanh"),
        ("silu_and_mul_static_fp8_quant", gate, scale),
        ("silu_and_mul_dynamic_per_token_fp8_quant", gate),
        ("static_scaled_fp8_quant", x, scale),
        ("static_scaled_fp8_quant", x, scale, torch.float8_e5m2),
        ("dynamic_per_token_scaled_fp8_quant", x, torch.tensor([2.0], device="cuda")),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "hidden"), [(0, 64), (1, 4096), (7, 769), (257, 4096), (33, 7168), (9, 32768)])
def test_values_agree_with_the_definitions(tokens: int, hidden: int, dtype: torch.dtype) -> None:
    for name, *args in _calls(tokens, hidden, dtype):
        assert getattr(takes, name)(*args) is True
        op = getattr(ops, name).op
        native = oracle.several(op.native(*args))
        got = oracle.several(getattr(triton, name)(*args))
        for a, b in zip(got, native, strict=True):
            torch.testing.assert_close(a.float(), b.float(), equal_nan=True, **op.get_tolerance(b.dtype))


@pytest.mark.parametrize("hidden", [769, 4096, 7168])
def test_a_row_has_the_same_bits_in_any_batch(hidden: int) -> None:
    for name, *args in _calls(600, hidden, torch.bfloat16):
        whole = oracle.several(getattr(triton, name)(*(a.clone() if isinstance(a, Tensor) else a for a in args)))
        for first, last in ((0, 255), (255, 256), (599, 600)):
            part = [a[first:last].clone() if isinstance(a, Tensor) and a.dim() == 2 else a for a in args]
            for a, b in zip(whole, oracle.several(getattr(triton, name)(*part)), strict=True):
                assert oracle.same_bits(a[first:last], b)


@pytest.mark.parametrize("neox", [True, False])
def test_rotary_turns_a_joint_tensor_in_place(*, neox: bool) -> None:
    torch.manual_seed(0)
    joint = torch.randn(9, 48 * 128, dtype=torch.bfloat16, device="cuda")
    kept, positions = joint.clone(), torch.randint(0, 99, (9,), device="cuda")
    table = torch.randn(99, 64, device="cuda")
    args = positions, joint[:, :4096], joint[:, 4096:5120], 128, table, neox
    native = ops.rotary_embedding.op.native(*args)
    for a, b in zip(triton.rotary_embedding(*args), native, strict=True):
        torch.testing.assert_close(a, b, **ops.rotary_embedding.op.get_tolerance(torch.bfloat16))
    assert torch.equal(joint[:, 5120:], kept[:, 5120:])


@pytest.mark.filterwarnings("ignore")  # Dynamo's and Inductor's own, which differ from release to release
def test_a_program_around_a_launch_compiles_as_one_graph() -> None:
    def program(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return triton.fused_add_rms_norm(x * 2, r + 1, w, 1e-5)

    x, r = (torch.randn(5, 4096, device="cuda") for _ in range(2))
    w = torch.randn(4096, device="cuda")
    for a, b in zip(torch.compile(program, fullgraph=True)(x, r, w), program(x, r, w), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_tensor_of_another_device_than_the_current_one() -> None:
    x = torch.randn(3, 64, device="cuda:1")
    torch.testing.assert_close(triton.rms_norm(x, None, 1e-5), ops.rms_norm.op.native(x, None, 1e-5))
    assert torch.cuda.current_device() == 0
