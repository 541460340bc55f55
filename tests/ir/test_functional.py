"""In-place providers that also have a kernel for calls that keep their inputs."""

from __future__ import annotations

import pytest
import torch

from opdock import ir
from opdock.errors import SchemaMismatchError
from opdock.ir.counter import counting


def make_op(name: str) -> ir.IrOp:
    @ir.register_op(name=name, activations=["x"], allow_inplace=True)
    def op(x: torch.Tensor, by: float) -> torch.Tensor:
        return x + by

    return op.op


def add_(x: torch.Tensor, by: float) -> torch.Tensor:
    return x.add_(by)


def test_a_call_that_keeps_its_input_runs_the_functional_kernel_without_clones() -> None:
    op = make_op("functional_one")
    seen: list[int] = []

    def into_new(x: torch.Tensor, by: float) -> torch.Tensor:
        seen.append(x.data_ptr())
        return x + by

    op.register_impl("mine", inplace=True, functional=into_new)(add_)
    x = torch.ones(3)
    with op.set_priority(["mine"]):
        y = op.fn(x, 2.0)
        assert seen == [x.data_ptr()]
        assert x.tolist() == [1.0] * 3
        assert y.tolist() == [3.0] * 3
        z = op.fn.maybe_inplace(x, 2.0)
    assert len(seen) == 1
    assert z.data_ptr() == x.data_ptr()
    assert x.tolist() == [3.0] * 3
    op.close()


def test_it_runs_behind_a_predicate_and_under_counting_too() -> None:

    op = make_op("functional_two")
    seen: list[float] = []

    def into_new(x: torch.Tensor, by: float) -> torch.Tensor:
        seen.append(by)
        return x + by

    op.register_impl("mine", inplace=True, functional=into_new, supports_args=lambda x, by: by > 0)(add_)
    x = torch.ones(2)
    with op.set_priority(["mine", "native"]):
        assert op.fn(x, 1.0).tolist() == [2.0] * 2
        assert op.fn(x, -1.0).tolist() == [0.0] * 2
        with counting() as counts:
            op.fn(x, 3.0)
    assert seen == [1.0, 3.0]
    assert dict(counts) == {("functional_two", "mine"): 1}
    assert x.tolist() == [1.0] * 2
    op.close()


def test_a_functional_kernel_of_another_schema_is_refused_and_nothing_is_registered() -> None:
    op = make_op("functional_three")

    def other(x: torch.Tensor) -> torch.Tensor:
        return x

    with pytest.raises(SchemaMismatchError):
        op.register_impl("mine", inplace=True, functional=other)(add_)
    assert list(op.impls) == ["native"]
    op.close()
