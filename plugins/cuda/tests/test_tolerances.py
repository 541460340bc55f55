"""opdock_cuda.tolerances: wide enough for every result that is right, and no wider than a step or two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cuda_spans as spans
import pytest
import torch
from cuda_spans import Span
from cuda_table import ROW_OPS, RowOp, Values
from torch import Tensor

from opdock import ir
from opdock.testing import oracle
from opdock.testing.check import Fault
from opdock_cuda import tolerances

pytestmark = pytest.mark.usefixtures("registered")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
PLAIN = [op for op in ROW_OPS if op.out == "same"]


def several(results: Any) -> tuple[Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def check(op: str, args: Sequence[Any], spans_of_results: Sequence[Span]) -> None:
    """Accept both ends of the spans, and nothing that is twice as far as the tolerance from the definition."""
    entry = ir.registry[op]
    native = several(entry.impls["native"].func_impl_fn(*entry.apply_arg_defaults(args)))
    for got in ([s.low for s in spans_of_results], [s.high for s in spans_of_results]):
        oracle.compare(entry, "cuda", got, native, args, op)
    allowed = entry.get_tolerance(native[0].dtype, "cuda")
    off = native[0].double() * (1 + 6 * allowed["rtol"]) + 6 * allowed["atol"]
    with pytest.raises(Fault, match="result 0 is wrong"):
        oracle.compare(entry, "cuda", [off.to(native[0].dtype), *native[1:]], native, args, op)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", PLAIN, ids=lambda o: f"{o.op}-{o.kind}")
def test_what_a_kernel_may_return_is_within_its_tolerance_and_not_much_else(op: RowOp, dtype: torch.dtype) -> None:
    values = Values.random(op, 64, 769, dtype, "cpu")
    if op.op == "gelu_and_mul" and dtype is torch.float32:
        pytest.skip("the spans are far wider here than the kernel needs: they take each term's largest error")
    fast = dtype is not torch.float32
    found = [values.rows(weighted=True, fast=fast)]
    if op.kind == "add":
        found.append(Span(values.total(64), values.total(64)))
    check(op.op, op.arguments(values.x, values.residual, values.weight, None), found)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_the_rotation_may_return_is_within_its_tolerance_and_not_much_else(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    positions, table = torch.randint(0, 32, (48,)), torch.randn(32, 64).to(dtype)
    query, key = torch.randn(48, 5, 64).to(dtype), torch.randn(48, 2, 64).to(dtype)
    cos, sin = table[positions].chunk(2, -1)
    found = [spans.rotated(t, cos, sin, neox=True) for t in (query, key)]
    check("rotary_embedding", (positions, query, key, 64, table, True), found)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", tolerances.ROUNDINGS)
def test_they_are_tighter_than_what_an_op_allows_others(op: str, dtype: torch.dtype) -> None:
    """Of a result of 1, and of one of 0."""
    mine, others = (ir.registry[op].get_tolerance(dtype, name) for name in ("cuda", None))
    assert mine["atol"] <= others["atol"]
    assert mine["atol"] + mine["rtol"] <= others["atol"] + others["rtol"]
