"""OPDOCK_STRICT=1: registration also runs predicates on fake tensors and the provider on small inputs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

from opdock import ir
from opdock.errors import RegistrationError

Op = Any


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPDOCK_STRICT", "1")


@pytest.fixture
def op() -> Op:
    """An op with an input generator, one of whose activations may be written."""

    @ir.register_op(activations=["x"], allow_inplace=True)
    def t_strict(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x * w

    @t_strict.register_input_generator
    def inputs(num_tokens: int = 4, hidden_size: int = 8, device: Any = None, **_: Any) -> tuple[Any, ...]:
        return torch.randn(num_tokens, hidden_size, device=device), torch.randn(hidden_size, device=device)

    return t_strict


def good(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * w


READERS: dict[str, Callable[..., object]] = {
    "item": lambda x, w: x.sum().item() > 0,
    "bool": lambda x, w: bool((x > 0).any()),
    "data_ptr": lambda x, w: x.data_ptr() % 16 == 0,
    "storage": lambda x, w: x.untyped_storage().data_ptr() % 16 == 0,
    "numpy": lambda x, w: x.numpy().size > 0,
    "error": lambda x, w: x.no_such_attribute,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", READERS)
def test_b32_a_predicate_that_reads_data_or_addresses_or_fails_is_refused(what: str, op: Op) -> None:
    """It would say yes to any alignment, or stop the compiler; op, provider and place are named."""
    with pytest.raises(RegistrationError) as caught:
        op.register_impl("p", supports_args=READERS[what])(good)
    text = str(caught.value)
    assert "supports_args of provider p reads" in text and "t_strict" in text and __file__ in text
    assert "p" not in op.impls


def test_b32_a_predicate_on_the_number_of_tokens_is_warned_about(op: Op, caplog: pytest.LogCaptureFixture) -> None:
    """Each answer costs a compile; sizes of a row do not."""
    with caplog.at_level(logging.WARNING, "opdock"):
        op.register_impl("rows", supports_args=lambda x, w: x.shape[1] % 8 == 0 and x.is_contiguous())(good)
        assert "number of tokens" not in caplog.text
        op.register_impl("batch", supports_args=lambda x, w: x.shape[0] >= 256)(good)
    assert "provider batch depends on the number of tokens" in caplog.text and "256" in caplog.text


def writes_weight(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x.mul_(w.mul_(2))


def returns_input(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x


def returns_view(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x.view(-1)


def raises(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    raise NotImplementedError("no kernel for CPU")


@pytest.mark.parametrize(
    ("fn", "inplace", "message"),
    [
        (writes_weight, True, "writes w, which it does not declare"),
        (writes_weight, False, "writes x, which it does not declare"),
        (returns_input, False, "returns the memory of x"),
        (returns_view, False, "returns the memory of x"),
        (raises, False, "raises NotImplementedError on inputs that supports_args takes"),
    ],
)
def test_b41_what_is_written_and_returned_is_what_is_declared(
    fn: Callable[..., Any], inplace: bool, message: str, op: Op
) -> None:
    """Run once on clones; every input is compared bit for bit."""
    with pytest.raises(RegistrationError, match=message):
        op.register_impl("p", inplace=inplace)(fn)
    assert "p" not in op.impls


def test_b41_a_write_that_only_changes_a_nan_or_a_sign_is_seen() -> None:
    """Bits, not values."""

    @ir.register_op
    def t_bits(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    t_bits.register_input_generator(lambda num_tokens=2, device=None, **_: (torch.zeros(num_tokens, device=device),))

    def negates(x: torch.Tensor) -> torch.Tensor:
        return x.neg_().clone()

    with pytest.raises(RegistrationError, match="writes x"):
        t_bits.register_impl("p")(negates)


@pytest.mark.parametrize("inplace", [True, False])
def test_true_providers_pass(inplace: bool, op: Op) -> None:
    """In place and not."""
    op.register_impl("p", inplace=inplace)(good if not inplace else lambda_free_inplace)
    assert "p" in op.impls


def lambda_free_inplace(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x.mul_(w)


def test_a_provider_that_takes_nothing_here_is_not_run(op: Op, caplog: pytest.LogCaptureFixture) -> None:
    """A kernel of another device is checked where that device is."""
    with caplog.at_level(logging.WARNING, "opdock"):
        op.register_impl("p", supports_args=lambda x, w: x.device.type == "npu")(raises)
        op.register_impl("q", supported="no such chip")(raises)
    assert {"p", "q"} < set(op.impls) and caplog.text.count("is not run") == 2


def test_an_op_without_inputs_is_not_probed(caplog: pytest.LogCaptureFixture) -> None:
    """And says so."""
    op = ir.register_op(name="t_no_inputs")(good)
    op.register_impl("p", supports_args=lambda x, w: x.item() > 0)(raises)
    assert "t_no_inputs has no input generator" in caplog.text and "p" in op.impls


def test_nothing_of_a_provider_runs_without_strict(op: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    """Registration runs no provider code: not the predicate, not `supported`, not the kernel."""
    monkeypatch.setenv("OPDOCK_STRICT", "0")

    def never(*_: Any) -> bool:
        raise AssertionError("was run")

    op.register_impl("p", supports_args=lambda x, w: never(), supported=never)(raises)
    assert "p" in op.impls
