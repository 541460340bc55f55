"""opdock_rocm.library, providers and predicates: why the HIP kernels are not there, and what they take."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from opdock_rocm import library, predicates
from opdock_rocm.library import missing, unfit

BF16, F32 = torch.bfloat16, torch.float32


def test_without_the_file_the_reason_says_that_nothing_was_built() -> None:
    assert unfit("7.1", built=False).startswith("built without HIP kernels")
    assert library.why_not() == unfit(torch.version.hip, built=False)
    assert library.why_not_on("gfx942") == library.why_not()


def test_a_pytorch_without_hip_does_not_load_them() -> None:
    assert unfit(None, built=True) == "PyTorch is built without HIP"
    assert unfit("7.1.25424", built=True) == ""


def test_code_is_for_one_architecture_alone() -> None:
    assert missing(["gfx90a", "gfx942"], "gfx942") == ""
    assert missing(["gfx90a", "gfx942"], "gfx950") == "the kernels are built for gfx90a, gfx942, and the GPU is gfx950"


def test_what_the_kernels_take_and_the_reason_where_they_do_not() -> None:
    with FakeTensorMode():
        x = torch.empty(4, 64, dtype=BF16, device="cuda:0")
        weight = torch.empty(64, dtype=BF16, device="cuda:0")
        scale = torch.empty(1, device="cuda:0")
        assert predicates.rms_norm(x, weight, 1e-6) is True
        assert "part of the row" in str(predicates.rms_norm(x, weight, 1e-6, 32))
        assert "multiply in one dtype" in str(predicates.rms_norm(x, weight.float(), 1e-6))
        assert "add in one dtype" in str(predicates.fused_add_rms_norm(x, x.float(), weight, 1e-6))
        assert "one tensor" in str(predicates.fused_add_rms_norm(x, x, weight, 1e-6))
        assert predicates.static_scaled_fp8_quant(x, scale) is True
        other = str(predicates.static_scaled_fp8_quant(x, scale, torch.float8_e5m2))
        assert other == "torch.float8_e5m2, and this GPU's kernels write torch.float8_e4m3fn"
        empty = torch.empty(4, 0, dtype=BF16, device="cuda:0")
        assert "no largest" in str(predicates.dynamic_per_token_scaled_fp8_quant(empty))
        assert "on cpu" in str(predicates.silu_and_mul(torch.empty(4, 64, dtype=BF16)))


def test_an_input_that_wants_a_gradient_is_left_to_native() -> None:
    with FakeTensorMode():
        x = torch.empty(4, 64, dtype=BF16, device="cuda:0", requires_grad=True)
        assert "gradients" in str(predicates.silu_and_mul(x))
        with torch.no_grad():
            assert predicates.silu_and_mul(x) is True


@pytest.mark.parametrize("positions", [torch.int16, torch.float32])
def test_rotary_embedding_takes_positions_of_two_dtypes(positions: torch.dtype) -> None:
    with FakeTensorMode():
        query, table = (torch.empty(4, 64, dtype=BF16, device="cuda:0") for _ in range(2))
        at = torch.empty(4, dtype=torch.int64, device="cuda:0")
        assert predicates.rotary_embedding(at, query, query.clone(), 64, table) is True
        assert "positions of" in str(predicates.rotary_embedding(at.to(positions), query, query.clone(), 64, table))
        assert "float32 or that" in str(predicates.rotary_embedding(at, query, query, 64, table.half()))
