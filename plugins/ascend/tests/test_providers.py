"""opdock_ascend.providers: what is registered, and how each operator is called. Values are the kit's matter."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from opdock import ir
from opdock_ascend import predicates
from opdock_ascend.priorities import PROVIDED, SECOND

pytestmark = pytest.mark.usefixtures("activated")

HALF = torch.float16


def _impl(op: str, provider: str = "ascend") -> Any:
    return ir.registry[op].impls[provider].func_impl_fn


def _npu(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype).to("npu")


def _shown(*shape: int, dtype: torch.dtype = HALF) -> tuple[tuple[int, ...], torch.dtype, str]:
    return shape, dtype, "npu"


def test_every_op_in_the_table_has_its_providers_and_no_other_has() -> None:
    assert sorted(PROVIDED) == sorted(name for name, op in ir.registry.items() if "ascend" in op.impls)
    assert sorted(SECOND) == sorted(name for name, op in ir.registry.items() if "ascend_mul" in op.impls)


def test_none_writes_its_inputs_or_promises_what_was_not_measured() -> None:
    impls = [ir.registry[op].impls["ascend"] for op in PROVIDED]
    assert all(impl.supported and not impl.inplace and not impl.batch_invariant for impl in impls)


def test_rms_norm_calls_its_operator_once_with_dense_rows(calls: Any) -> None:
    x, weight = _npu(3, 4, 64), _npu(64)
    _impl("rms_norm")(x.transpose(0, 1), weight, 1e-5)
    (call,) = calls()
    assert call.op == "npu::npu_rms_norm"
    assert call.arguments == {"input": _shown(4, 3, 64), "gamma": _shown(64), "epsilon": 1e-5}


def test_fused_add_rms_norm_adds_in_the_operator(calls: Any) -> None:
    x, residual, weight = _npu(3, 64), _npu(3, 64), _npu(64)
    y, total = _impl("fused_add_rms_norm")(x, residual, weight, 1e-6)
    (call,) = calls()
    assert call.op == "npu::npu_add_rms_norm"
    assert call.arguments == {"x1": _shown(3, 64), "x2": _shown(3, 64), "gamma": _shown(64), "epsilon": 1e-6}
    assert y.data_ptr() != x.data_ptr() and total.data_ptr() not in (x.data_ptr(), residual.data_ptr())


def test_activations_are_gated_by_the_first_half_of_the_row(calls: Any) -> None:
    x = _npu(3, 64)
    _impl("silu_and_mul")(x)
    _impl("gelu_and_mul")(x, "tanh")
    silu, gelu = calls()
    assert (silu.op, dict(silu.arguments)) == ("npu::npu_swiglu", {"input": _shown(3, 64), "dim": -1})
    assert (gelu.op, dict(gelu.arguments)) == ("npu::npu_gelu_mul", {"input": _shown(3, 64), "approximate": "tanh"})


@pytest.mark.parametrize(("is_neox", "mode"), [(True, "half"), (False, "interleave")])
def test_rotary_embedding_is_one_call_for_query_and_key_with_one_position_a_token(
    calls: Any, is_neox: bool, mode: str
) -> None:
    positions = torch.arange(3, dtype=torch.int32).to("npu")
    query, key = _impl("rotary_embedding")(positions, _npu(3, 4, 64), _npu(3, 2, 64), 64, _npu(16, 32), is_neox)
    (call,) = calls()
    assert call.op == "npu::npu_mrope"
    assert call.arguments == {
        "positions": _shown(3, dtype=torch.int64),
        "query": _shown(3, 256),
        "key": _shown(3, 128),
        "cos_sin_cache": _shown(16, 32),
        "head_size": 64,
        "mrope_section": [0, 0, 0],
        "rotary_mode": mode,
        "cache_mode": "default",
    }
    assert (query.shape, key.shape) == ((3, 4, 64), (3, 2, 64))


@pytest.mark.parametrize(("is_neox", "mode"), [(True, "half"), (False, "interleave")])
def test_narrow_rotations_are_a_product_for_each_of_query_and_key(calls: Any, is_neox: bool, mode: str) -> None:
    positions = torch.arange(3).to("npu")
    _impl("rotary_embedding", "ascend_mul")(positions, _npu(3, 256), _npu(3, 128), 64, _npu(16, 24), is_neox)
    query, key = calls()
    assert query.op == key.op == "npu::npu_rotary_mul"
    table = _shown(1, 3, 1, 24)
    rest = {"r1": table, "r2": table, "rotary_mode": mode, "rotate": None}
    assert query.arguments == {"input": _shown(1, 3, 4, 24), **rest}
    assert key.arguments == {"input": _shown(1, 3, 2, 24), **rest}


def test_predicates_say_what_an_operator_does_not_take() -> None:
    x, weight = _npu(2, 64), _npu(64)
    cases = {
        "x is on cpu": (x.cpu(), weight, 1e-6, None),
        "no operator for x of torch.float64": (x.double(), weight.double(), 1e-6, None),
        "no operator for a mean square over a part of the row": (x, weight, 1e-6, 32),
        "the operator multiplies by a weight, and there is none": (x, None, 1e-6, None),
        "weight of torch.float32 beside x of torch.float16": (x, weight.float(), 1e-6, None),
        "weight of shape (32,) is not one row": (x, weight[:32], 1e-6, None),
        "weight is on cpu": (x, weight.cpu(), 1e-6, None),
        "the operator takes no tensor without elements": (x[:0], weight, 1e-6, None),
    }
    for reason, args in cases.items():
        assert str(predicates.rms_norm(*args)).startswith(reason)
    assert predicates.rms_norm(x, weight, 1e-6) is True
    other = str(predicates.fused_add_rms_norm(x, x.float(), weight, 1e-6))
    assert other.startswith("x_residual of torch.float32")
    assert predicates.fused_add_rms_norm(x, x[:1], weight, 1e-6) == "x and x_residual differ in shape"
    assert predicates.silu_and_mul(x[:, :63]) == "the last dimension is odd"
    assert predicates.gelu_and_mul(_npu(2, 1026)) == "rows of 1026: the operator takes up to 1024"
    assert predicates.gelu_and_mul(x, "sigmoid") == "no operator for approximate='sigmoid'"
    assert predicates.silu_and_mul(x) is True and predicates.gelu_and_mul(x, "tanh") is True


def test_rotations_are_declined_by_width_dtype_and_device() -> None:
    positions, query, key = torch.arange(2).to("npu"), _npu(2, 256), _npu(2, 128)
    narrow, wide = _npu(16, 24), _npu(16, 64)
    found = predicates.rotary_embedding(positions, query, key, 64, narrow)
    assert found == "a rotated width of 24: the operator takes multiples of 32"
    assert predicates.rotary_mul(positions, query, key, 64, narrow) is True
    for takes in (predicates.rotary_embedding, predicates.rotary_mul):
        assert takes(positions, query, key, 64, wide) is True
        assert "cos_sin_cache of torch.float32" in str(takes(positions, query, key, 64, wide.float()))
        assert takes(positions.cpu(), query, key, 64, wide) == "the arguments are on several devices"
        assert "is not 2 rows of whole heads of 48" in str(takes(positions, query, key, 48, _npu(16, 32)))


def test_on_meta_tensors_the_operators_give_the_shapes_that_they_give_on_the_device(torch_npu: Any) -> None:
    """torch_npu's own meta functions against what the references gave above; the kit compares fake tensors."""
    x, weight = torch.empty(3, 64, device="meta", dtype=HALF), torch.empty(64, device="meta", dtype=HALF)
    assert torch_npu.npu_rms_norm(x, weight)[0].shape == (3, 64)
    assert [t.shape for t in torch_npu.npu_add_rms_norm(x, x, weight)][::2] == [(3, 64), (3, 64)]
    assert torch_npu.npu_swiglu(x).shape == torch_npu.npu_gelu_mul(x).shape == (3, 32)
