"""Every registered provider gets a verdict with a reason, on real, fake and meta tensors."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from opdock import ir

Op = Any


def run(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float = 1e-6, size: int | None = None) -> torch.Tensor:
    return x.clone()


def reason(op: Op, provider: str, *args: Any, **kwargs: Any) -> str:
    """Return the reason in the provider's verdict."""
    return str(next(v.reason for v in op.explain(*args, **kwargs).verdicts if v.provider == provider))


@pytest.fixture
def op() -> Op:
    """An op without providers."""
    return ir.register_op(run, name="t_explained")


def by_clause(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float = 1e-6, size: int | None = None) -> bool:
    return (
        size is None
        and (weight is None or weight.dtype == x.dtype)
        and x.is_contiguous()
    )  # fmt: skip


def by_steps(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float = 1e-6, size: int | None = None) -> bool:
    """Refuse in steps."""
    if size is not None:
        return False
    return not x.is_contiguous()


def by_reason(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float = 1e-6, size: int | None = None) -> object:
    return size is None or f"size {size} is not supported"


X, W = torch.ones(2, 4), torch.ones(4)
CASES: list[tuple[Any, tuple[Any, ...], str]] = [
    (by_clause, (X.bfloat16(), W), "`weight is None or weight.dtype == x.dtype` is false"),
    (by_clause, (X.t(), None), "`x.is_contiguous()` is false"),
    (by_clause, (X, W, 1e-6, 2), "`size is None` is false"),
    (by_steps, (X, W, 1e-6, 2), "returned False at `return False`"),
    (by_steps, (X, None), "`not x.is_contiguous()` is false"),
    (by_reason, (X, W, 1e-6, 2), "size 2 is not supported"),
    (lambda x, weight, epsilon=1e-6, size=None: x.dim() == 3 and size is None, (X, W), "`x.dim() == 3` is false"),
    (lambda x, weight, epsilon=1e-6, size=None: "", (X, W), "returned ''"),
    (lambda x, weight, epsilon=1e-6, size=None: 0, (X, W), "returned 0"),
]


@pytest.mark.parametrize(("predicate", "args", "expected"), CASES, ids=[str(i) for i in range(len(CASES))])
def test_b33_explain_says_which_condition_of_the_predicate_is_false(
    predicate: Callable[..., Any], args: tuple[Any, ...], expected: str, op: Op
) -> None:
    """With file and line; a float32 weight beside a bfloat16 x is the case that was never noticed."""
    op.register_impl("fast", supports_args=predicate)(run)
    op.set_default(["fast", "native"])
    said = reason(op, "fast", *args)
    assert expected in said
    assert by_reason is predicate or "test_explain.py:" in said
    assert op.explain(*args).winner is op.impls["native"] is op.dispatch(*args)


def test_b33_the_line_of_the_condition_is_given_and_a_debugger_stays(op: Op) -> None:
    """The trace function that finds it is gone afterwards."""
    op.register_impl("fast", supports_args=by_clause)(run)
    op.set_default(["fast", "native"])
    before = sys.gettrace()
    line = by_clause.__code__.co_firstlineno + 3
    assert reason(op, "fast", X.bfloat16(), W).endswith(f"(test_explain.py:{line})")
    assert sys.gettrace() is before


@pytest.mark.parametrize("kind", ["fake", "meta"])
def test_explain_and_dispatch_work_without_data(kind: str, op: Op) -> None:
    """So a report needs no memory."""
    op.register_impl("fast", supports_args=by_clause)(run)
    op.set_default(["fast", "native"])
    mode: Any = FakeTensorMode() if kind == "fake" else contextlib.nullcontext()
    with mode:
        device = "cpu" if kind == "fake" else "meta"
        args = torch.empty(2, 4, dtype=torch.bfloat16, device=device), torch.empty(4, device=device)
    assert reason(op, "fast", *args).startswith("supports_args: `weight is None or weight.dtype")
    assert op.dispatch(args[0], None).provider == "fast"


def test_every_registered_provider_has_one_verdict(op: Op) -> None:
    """Tried ones first, in order; exactly one is chosen."""
    op.register_impl("first", supports_args=by_clause)(run)
    op.register_impl("broken", supported=lambda: "no libfast.so")(run)
    op.register_impl("second")(run)
    op.register_impl("third")(run)
    op.register_impl("unlisted")(run)
    op.set_default(["broken", "first", "second", "third"])
    choice = op.explain(X, W, size=1)
    assert [(v.provider, v.chosen) for v in choice.verdicts] == [
        ("first", False), ("second", True), ("native", False), ("broken", False), ("third", False), ("unlisted", False),
    ]  # fmt: skip
    assert choice.winner is op.impls["second"] and choice.reason == "first in the priority that takes these arguments"
    assert reason(op, "broken", X, W) == "no libfast.so"
    assert reason(op, "third", X, W) == "second comes before it and takes any arguments"
    assert reason(op, "unlisted", X, W) == "not in the priority list"
    assert reason(op, "second", X, W) == "first comes before it and takes these arguments"


def test_without_a_priority_native_runs_and_explain_says_so(op: Op) -> None:
    """Registering a provider is not choosing it."""
    op.register_impl("p")(run)
    choice = op.explain(X, W)
    assert choice.winner is op.impls["native"] and "no priority is set" in choice.reason
    assert reason(op, "p", X, W) == "no priority is set"


def test_b62_explain_names_the_mode_that_left_a_provider_out(op: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    """Native included, which runs all the same if nothing else can."""
    op.register_impl("p")(run)
    op.set_default(["p", "native"])
    assert op.explain(X, W).winner.provider == "p"
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    choice = op.explain(X, W)
    assert choice.winner.provider == "native" and "does not declare batch_invariant either" in choice.reason
    assert "VLLM_BATCH_INVARIANT=1" in reason(op, "p", X, W)


def test_choice_and_verdict_are_values() -> None:
    """Frozen, and equal by content."""
    assert ir.Verdict("a", chosen=True, reason="r") == ir.Verdict("a", chosen=True, reason="r")
    with pytest.raises(AttributeError):
        ir.Verdict("a", chosen=True, reason="r").reason = "s"  # type: ignore[misc]
