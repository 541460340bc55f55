"""Calls are counted by op and provider while somebody counts, in every thread, and cost nothing otherwise."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from opdock import ir

X = torch.ones(2)


def native(x: torch.Tensor, k: int = 0) -> torch.Tensor:
    return x + k


def odd(x: torch.Tensor, k: int = 0) -> bool:
    return k % 2 == 1


@pytest.fixture
def op() -> Any:
    """An op with a provider for odd k."""
    op = ir.register_op(name="t_counted", allow_inplace=True)(native)
    op.register_impl("odd", supports_args=odd)(native)
    op.set_default(["odd", "native"])
    return op


def plan_of(op: Any) -> Any:
    """Return what the public function runs."""
    return op.__globals__["_plan"]


def test_counts_by_provider_whatever_the_way_of_calling(op: Any) -> None:
    """Directly, by keyword, in place, through the torch op."""
    with ir.counting() as counts:
        op(X, 1)
        op(x=X)
        op.maybe_inplace(X, k=3)
        op.torch_op(X, 2)
        op.torch_op(X)
    assert counts == Counter({("t_counted", "native"): 3, ("t_counted", "odd"): 2})
    op(X, 1)
    assert counts["t_counted", "odd"] == 2


def test_nothing_stands_in_the_way_when_nobody_counts(op: Any) -> None:
    """The code behind the op is the same before and after, also if the block raises."""
    before = plan_of(op)
    with contextlib.suppress(ZeroDivisionError), ir.counting():
        assert plan_of(op) is not before
        raise ZeroDivisionError
    assert plan_of(op) is before


def test_countings_nest_and_see_scopes_and_later_ops(op: Any) -> None:
    """Each block has its own numbers."""
    with ir.counting() as outer:
        op(X, 1)
        with ir.counting() as inner, op.set_priority(["native"]):
            op(X, 1)
            late = ir.register_op(name="t_counted_late")(native)
            late(X)
        op(X, 1)
    assert inner == {("t_counted", "native"): 1, ("t_counted_late", "native"): 1}
    assert outer == {("t_counted", "odd"): 2, ("t_counted", "native"): 1, ("t_counted_late", "native"): 1}


def test_no_call_of_any_thread_is_lost(op: Any) -> None:
    """Increments are not torn."""
    with ir.counting() as counts:
        threads = [threading.Thread(target=lambda: [op(X, k) for k in range(400)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert counts == {("t_counted", "odd"): 800, ("t_counted", "native"): 800}


def test_fake_calls_run_no_provider_and_do_not_count(op: Any) -> None:
    """They are no calls."""
    with ir.counting() as counts, FakeTensorMode():
        op(torch.empty(2))
    assert counts == {}
