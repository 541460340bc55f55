"""What maybe_inplace is given is not used afterwards, by any name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import traced

from opdock import ir
from opdock.compile import DonationError
from opdock.compile.donation import check_donations, donated_inputs

X, R, W = torch.randn(4, 8), torch.randn(4, 8), torch.ones(8)
norm = ir.ops.fused_add_rms_norm


def _again(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Any:
    y, _ = norm.maybe_inplace(x, r, w, 1e-5)
    return y + x


def _through_a_view(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Any:
    rows = x[1:]
    y, _ = norm.maybe_inplace(x, r, w, 1e-5)
    return y[1:] + rows


def _through_its_base(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Any:
    y, _ = norm.maybe_inplace(x.view(8, 4), r.view(8, 4), w[:4], 1e-5)
    return y, x.sum()


def _returned(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Any:
    y, _ = norm.maybe_inplace(x, r, w, 1e-5)
    return y, r


def _given_twice(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Any:
    y, _ = norm.maybe_inplace(x, r, w, 1e-5)
    return norm.maybe_inplace(y, r, w, 1e-5)


def _by_keyword(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Any:
    y, _ = norm.maybe_inplace(epsilon=1e-5, weight=w, x_residual=r, x=x)
    return y + x


def _as_both(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Any:
    return norm.maybe_inplace(x, x, w, 1e-5)


def _weight_in_it(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Any:
    return norm.maybe_inplace(x, r, x[0], 1e-5)


MISUSES = [_again, _through_a_view, _through_its_base, _returned, _given_twice, _by_keyword, _as_both, _weight_in_it]


@pytest.mark.parametrize("program", MISUSES, ids=lambda p: p.__name__.strip("_"))
def test_a_use_of_what_was_given_away_is_refused(program: Callable[..., Any]) -> None:
    with pytest.raises(DonationError, match=r"is used again after the node|the same memory"):
        check_donations(traced(program, X, R, W).graph)


# Dynamo hands an input that is returned to the caller itself: the graph does not say so.
@pytest.mark.parametrize("program", [p for p in MISUSES if p is not _returned], ids=lambda p: p.__name__.strip("_"))
def test_the_backend_refuses_it_too_and_shows_the_line_of_the_user(program: Callable[..., Any]) -> None:
    """The check runs on Dynamo's graph, whose nodes know where they come from."""
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught, torch.no_grad():
        torch.compile(program, backend="opdock_eager", fullgraph=True)(X.clone(), R.clone(), W)
    assert isinstance(caught.value.inner_exception, DonationError)
    assert f"{__file__}:" in str(caught.value)
    assert "Remedy: call fused_add_rms_norm itself" in str(caught.value)


def _columns(qkv: torch.Tensor, cache: torch.Tensor) -> Any:
    """What attention layers do: the value columns of the projection stay."""
    q, k, v = qkv.split((16, 8, 8), dim=-1)
    positions = torch.arange(qkv.shape[0])
    q, k = ir.ops.rotary_embedding.maybe_inplace(positions, q, k, 8, cache)
    return q, k, v + 1


@pytest.mark.parametrize("symbolic", [False, True])
def test_other_columns_of_one_matrix_are_free(symbolic: bool) -> None:
    check_donations(traced(_columns, torch.randn(4, 32), torch.randn(16, 8), symbolic=symbolic).graph)


def _asks_its_size(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Any:
    y, _ = norm.maybe_inplace(x, r, w, 1e-5)
    return y.view(x.shape[0] * 2, -1)


def test_asking_for_the_size_of_what_was_given_away_is_no_use() -> None:
    got = torch.compile(_asks_its_size, backend="opdock_eager", fullgraph=True, dynamic=True)
    with torch.no_grad():
        assert got(X.clone(), R.clone(), W).shape == (8, 4)


def test_inputs_count_as_donated_if_all_of_them_is_given_and_nothing_reads_them_afterwards() -> None:
    def program(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor, w: torch.Tensor) -> Any:
        y, total = norm.maybe_inplace(a, b.view(4, 8), w, 1e-5)
        z, _ = norm.maybe_inplace(y, c[:4], w, 1e-5)
        return z, total, norm(d, total, w, 1e-5)

    args = (X, R.view(8, 4), torch.randn(6, 8), torch.randn(4, 8), W)
    assert donated_inputs(traced(program, *args).graph) == {0, 1}


class _Holder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(4, 8))
        self.weight = torch.nn.Parameter(torch.ones(4, 8))


@pytest.mark.parametrize("name", ["kept", "weight"])
def test_what_belongs_to_a_module_is_not_given_away(name: str) -> None:
    """The next call would find the op's results in it."""

    class Gives(_Holder):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return norm.maybe_inplace(x, getattr(self, name).view(4, 8), None, 1e-5)[0]

    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="which belongs to a module"), torch.no_grad():
        torch.compile(Gives(), backend="opdock_eager", fullgraph=True)(X.clone())
