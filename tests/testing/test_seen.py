"""What the kit sees of the torch ops that a provider calls."""

from __future__ import annotations

import pytest
import torch
from torch._ops import HigherOrderOperator

from opdock.testing.checks.calls import _Seen


class _Launch(HigherOrderOperator):
    """An operator without a schema, as the launch of a Triton kernel is while a dispatch mode is on."""

    def __init__(self) -> None:
        super().__init__("opdock_test_launch")  # type: ignore[no-untyped-call]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = super().__call__(x)  # type: ignore[no-untyped-call]
        return found


@pytest.fixture(scope="module")
def launch() -> _Launch:
    op = _Launch()
    keys = torch._C.DispatchKey
    for key in (keys.PythonDispatcher, keys.PythonTLSSnapshot, keys.ADInplaceOrView, keys.BackendSelect):
        op.fallthrough(key)  # type: ignore[no-untyped-call]
    op.fallthrough(keys.AutogradCPU)  # type: ignore[no-untyped-call]
    op.py_impl(keys.CPU)(torch.sin)  # type: ignore[no-untyped-call]
    return op


def test_a_launch_without_a_schema_runs_and_is_not_noted(launch: _Launch) -> None:
    x = torch.ones(3)
    with _Seen() as seen:
        found = launch(x)
    assert torch.equal(found, torch.sin(x))
    assert seen.calls == []


def test_an_op_of_a_package_is_noted_with_its_arguments() -> None:
    library = torch.library.Library("opdock_test_seen", "DEF")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", lambda x: x + x, "CPU")
    x = torch.ones(3)
    with _Seen() as seen:
        torch.ops.opdock_test_seen.double(x + x)
    (op, (given,)) = seen.calls[0]
    assert len(seen.calls) == 1
    assert op is torch.ops.opdock_test_seen.double.default
    assert torch.equal(given, x + x)
