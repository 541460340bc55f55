"""direct_register_custom_op: keys, schemas, repeats."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import pytest
import torch

from opdock import journal
from opdock.errors import DuplicateError, RegistrationError
from opdock.registry import direct_register_custom_op
from opdock.registry.library import check_dispatch_key


def add_one(x: torch.Tensor, n: int = 1) -> torch.Tensor:
    """Return x + n."""
    return x + n


def fill(x: torch.Tensor, value: float) -> None:
    """Write value into x."""
    x.fill_(value)


def test_registered_op_runs_and_is_traced() -> None:
    """On its key, with a fake implementation for tracing."""
    direct_register_custom_op("t_add_one", add_one, fake_impl=lambda x, n=1: torch.empty_like(x), dispatch_key="CPU")
    assert torch.ops.opdock.t_add_one(torch.zeros(2)).tolist() == [1, 1]
    torch.library.opcheck(torch.ops.opdock.t_add_one.default, (torch.zeros(2), 3))


def test_b41_declared_mutation_is_in_the_schema() -> None:
    """A write that is declared survives compilation."""
    direct_register_custom_op("t_fill", fill, mutates_args=["x"], fake_impl=lambda x, value: None, dispatch_key="CPU")
    x = torch.zeros(2)
    torch.compile(lambda t: torch.ops.opdock.t_fill(t, 3.0), backend="aot_eager")(x)
    assert x.tolist() == [3, 3]


def test_b27_same_function_again_is_a_no_op_and_another_is_an_error() -> None:
    """Both places are shown."""
    direct_register_custom_op("t_twice", add_one, dispatch_key="CPU")
    direct_register_custom_op("t_twice", add_one, dispatch_key="CPU")
    with pytest.raises(DuplicateError, match=r"opdock::t_twice[\s\S]*registered at[\s\S]*again at"):
        direct_register_custom_op("t_twice", fill, mutates_args=["x"], dispatch_key="CPU")


def test_b27_retry_after_a_failure_works() -> None:
    """A refused registration leaves nothing behind."""

    def untyped(x):  # noqa: ANN001, ANN202 - that it has no annotations is the point
        return x

    with pytest.raises(RegistrationError, match="schema of opdock::t_retry cannot be inferred"):
        direct_register_custom_op("t_retry", untyped, dispatch_key="CPU")
    direct_register_custom_op("t_retry", add_one, dispatch_key="CPU")
    assert torch.ops.opdock.t_retry(torch.zeros(1)) == 1


def test_roll_back_takes_the_torch_op_away() -> None:
    """The name can be used again, with another function."""

    class Stop(Exception):
        pass

    with contextlib.suppress(Stop), journal.transaction():
        direct_register_custom_op("t_rolled", add_one, dispatch_key="CPU")
        raise Stop
    assert not hasattr(torch.ops.opdock, "t_rolled")
    direct_register_custom_op("t_rolled", fill, mutates_args=["x"], dispatch_key="CPU")


@pytest.mark.parametrize("key", ["NPU", "npu", "TPU", "", "cuda"])
def test_b46_invented_keys_are_refused_with_the_known_ones(key: str) -> None:
    """The empty key too: torch takes it for all devices."""
    with pytest.raises(RegistrationError, match=r"is not a dispatch key of torch\.[\s\S]*PrivateUse1"):
        direct_register_custom_op("t_key", add_one, dispatch_key=key)


def test_b46_key_must_be_that_of_the_device() -> None:
    """A CPU key for CUDA tensors is found before the first token."""
    check_dispatch_key("CUDA", "cuda")
    with pytest.raises(RegistrationError, match="torch dispatches 'cuda' tensors to 'CUDA'"):
        check_dispatch_key("CPU", "cuda")
    with pytest.raises(RegistrationError, match="knows no device type 'npuu'"):
        check_dispatch_key("CPU", "npuu")


def test_b27_roll_back_of_a_reloaded_op_makes_the_former_one_again() -> None:
    """The module was reloaded inside a hook that raised: the op is there as before, and may be registered again."""
    source = "import torch\ndef f(x: torch.Tensor) -> torch.Tensor:\n    return x + 1\n"
    scopes: list[dict[str, Any]] = [{}, {}]
    for scope in scopes:
        exec(compile(source, "reloaded.py", "exec"), scope)
    direct_register_custom_op("reloaded", scopes[0]["f"], dispatch_key="CPU")
    with contextlib.suppress(ZeroDivisionError), journal.transaction():
        direct_register_custom_op("reloaded", scopes[1]["f"], dispatch_key="CPU")
        raise ZeroDivisionError
    assert torch.ops.opdock.reloaded(torch.zeros(1)).item() == 1
    direct_register_custom_op("reloaded", scopes[0]["f"], dispatch_key="CPU")
    assert torch.ops.opdock.reloaded(torch.zeros(1)).item() == 1


@pytest.mark.parametrize("kind", ["name", "partial", "taken"])
def test_what_torch_cannot_take_is_an_error_that_names_the_op(kind: str) -> None:
    """No RuntimeError from inside torch, and nothing is left behind."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return x

    library = torch.library.Library("opdock", "FRAGMENT")
    library.define("taken(Tensor x) -> Tensor")
    before = journal.entries()
    given: Any = functools.partial(f) if kind == "partial" else f
    with pytest.raises(RegistrationError, match=kind):
        direct_register_custom_op("bad name" if kind == "name" else kind, given, dispatch_key="CPU")
    assert journal.entries() == before
    library._destroy()
