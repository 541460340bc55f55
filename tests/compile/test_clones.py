"""Which clones go and which stay, each case by hand; the fuzzer has the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import targets, traced
from torch import Tensor

from opdock import ir
from opdock.compile.clones import count_clones, remove_clones
from opdock.compile.passes import run

aten = torch.ops.aten
clone = aten.clone.default


def left(program: Callable[..., Any], *args: Tensor, donated: tuple[int, ...] = ()) -> int:
    """Return how many clones stay, having compared values and kept inputs bit for bit."""
    gm = traced(program, *args)
    remove_clones(gm.graph, donated)
    gm.graph.lint()
    gm.recompile()
    before, after = [a.clone() for a in args], [a.clone() for a in args]
    want, got = program(*before), gm(*after)
    for a, b in zip(_flat(want), _flat(got), strict=True):
        assert torch.equal(a, b)
        assert a.stride() == b.stride()
    for k, (a, b) in enumerate(zip(before, after, strict=True)):
        assert k in donated or torch.equal(a, b), f"input {k} was written"
    assert _shared(got, after, donated) <= _shared(want, before, donated)
    return count_clones(gm.graph)


def _flat(results: Any) -> list[Tensor]:
    return list(results) if isinstance(results, tuple | list) else [results]


def _shared(results: Any, inputs: list[Tensor], donated: tuple[int, ...]) -> set[tuple[int, int]]:
    kept = [t for k, t in enumerate(inputs) if k not in donated]
    address = [t.untyped_storage().data_ptr() for t in (*_flat(results), *kept)]
    count = len(_flat(results))
    return {(i, j) for i in range(count) for j in range(i + 1, len(address)) if address[i] == address[j]}


def _read_only(x: Tensor) -> Tensor:
    return clone(x) * 2


def _written_and_original_used(x: Tensor) -> Any:
    y = x + 1
    c = clone(y)
    c.add_(1)
    return c * 2, y * 2


def _written_and_original_dead(x: Tensor) -> Tensor:
    c = clone(x + 1)
    c.add_(1)
    return c * 2


def _chain(x: Tensor) -> Tensor:
    c = clone(clone(clone(x + 1)))
    c.mul_(2)
    return c + 1


def _layout(x: Tensor) -> Tensor:
    return clone(x.t(), memory_format=torch.contiguous_format) + 1


def _several(x: Tensor) -> Any:
    y = x + 1
    a, b = clone(y), clone(y)
    a.mul_(2)
    b.mul_(3)
    return a + b


def _returned_input(x: Tensor) -> Tensor:
    return clone(x)


def _returned_view_of_input(x: Tensor) -> Tensor:
    return clone(x[0])


def _view_of_returned_clone(x: Tensor) -> Tensor:
    return clone(x).view(-1)


def _returned_twice(x: Tensor) -> Any:
    y = x + 1
    return y, clone(y)


def _returned_intermediate(x: Tensor) -> Tensor:
    return clone(x + 1)


def _none(x: Tensor) -> Tensor:
    return x + 1


# The unsound cases of the pass that plugin authors know: each gave wrong numbers or an error there.


def _original_written_after_a_read_only_clone(x: Tensor) -> Any:
    y = x + 1
    c = clone(y)
    y.mul_(3)
    return c * 2, y * 2


def _view_of_the_original_used_after_the_write(x: Tensor) -> Any:
    y = x + 1
    rows = y[1:]
    c = clone(y)
    c.mul_(3)
    return c * 2, rows * 2


def _written_through_out(x: Tensor) -> Any:
    y = x + 1
    c = clone(y)
    torch.add(y, 1, out=c)
    return c * 2, y * 2


def _written_through_a_view_of_the_clone(x: Tensor) -> Any:
    y = x + 1
    c = clone(y)
    c[0].zero_()
    return c * 2, y * 2


def _one_kernel_reads_the_original_and_writes_the_clone(x: Tensor) -> Tensor:
    """Case B40: reading and writing one memory in one kernel that is not element by element."""
    y = x + 1
    c = clone(y)
    torch.ops.t_compile.add_rms_norm_(c, c.clone(), y[0], 1e-5)
    return c * 2


def _copied_back(x: Tensor) -> Tensor:
    y = x + 1
    c = clone(y)
    c.mul_(2)
    y.copy_(c)
    return y + c


def _unsafe_view(x: Tensor) -> Any:
    y = x + 1
    flat = aten._unsafe_view.default(y, [32])
    c = clone(y)
    c.mul_(2)
    return c + 1, flat + 1


def _other_rows(x: Tensor) -> Any:
    y = x + 1
    c = clone(y[:2])
    c.mul_(2)
    return c + 1, y[2:] + 1


CASES = {
    _read_only: 0,
    _written_and_original_used: 1,
    _written_and_original_dead: 0,
    _chain: 0,
    _layout: 1,
    _several: 1,
    _returned_input: 1,
    _returned_view_of_input: 1,
    _view_of_returned_clone: 1,
    _returned_twice: 1,
    _returned_intermediate: 0,
    _none: 0,
    _original_written_after_a_read_only_clone: 1,
    _view_of_the_original_used_after_the_write: 1,
    _written_through_out: 1,
    _written_through_a_view_of_the_clone: 1,
    _one_kernel_reads_the_original_and_writes_the_clone: 2,
    _copied_back: 0,
    _unsafe_view: 1,
    _other_rows: 0,
}


@pytest.mark.parametrize(("program", "count"), CASES.items(), ids=lambda p: getattr(p, "__name__", "").strip("_"))
def test_a_clone_goes_where_no_one_can_see_it_and_stays_elsewhere(program: Callable[..., Any], count: int) -> None:
    """One fewer would be a fault too: something would be overwritten or handed out."""
    assert left(program, torch.randn(4, 8)) == count


def _donated(x: Tensor) -> Tensor:
    c = clone(x)
    c.mul_(2)
    return c + 1


def test_a_donated_input_may_be_written_and_another_may_not() -> None:
    assert left(_donated, torch.randn(4, 8), donated=(0,)) == 0
    assert left(_donated, torch.randn(4, 8)) == 1


def _one_of_two(x: Tensor, y: Tensor) -> Any:
    a, b = clone(x), clone(y)
    a.mul_(2)
    b.mul_(2)
    return a + 1, b + 1


def test_of_two_inputs_the_donated_one_loses_its_clone() -> None:
    assert left(_one_of_two, torch.randn(4, 8), torch.randn(4, 8), donated=(1,)) == 1


def test_the_pass_finds_nothing_in_what_it_left() -> None:
    gm = traced(_several, torch.randn(4, 8))
    remove_clones(gm.graph)
    assert remove_clones(gm.graph) == 0


def test_an_unknown_higher_order_operator_may_write_what_it_gets() -> None:
    def program(x: Tensor) -> Any:
        y = x + 1
        c = clone(y)
        z = torch.cond(x.sum() > 0, lambda t: t + 1, lambda t: t - 1, (c,))
        return z, y

    gm = traced(program, torch.randn(4, 8))
    remove_clones(gm.graph)
    assert count_clones(gm.graph) == 1


# -- through lowering: the counts for an in-place provider


def _all_in_place(x: Tensor, r1: Tensor, r2: Tensor, w: Tensor) -> Any:
    y, total1 = ir.ops.fused_add_rms_norm.maybe_inplace(x, r1, w, 1e-5)
    z, total2 = ir.ops.fused_add_rms_norm.maybe_inplace(y, r2, w, 1e-5)
    return z, total1, total2


def _all_functional(x: Tensor, r1: Tensor, r2: Tensor, w: Tensor) -> Any:
    y, total1 = ir.ops.fused_add_rms_norm(x, r1, w, 1e-5)
    z, total2 = ir.ops.fused_add_rms_norm(y, r2, w, 1e-5)
    return z, total1, total2


def _mixed(x: Tensor, r1: Tensor, r2: Tensor, w: Tensor) -> Any:
    y, total1 = ir.ops.fused_add_rms_norm.maybe_inplace(x, r1, w, 1e-5)
    z, total2 = ir.ops.fused_add_rms_norm(y, r2, w, 1e-5)
    return y, z, total1, total2


def _opaque_between(x: Tensor, r1: Tensor, r2: Tensor, w: Tensor) -> Any:
    y, _ = ir.ops.fused_add_rms_norm.maybe_inplace(x, r1, w, 1e-5)
    y = torch.ops.t_compile.rms_norm(y, w, 1e-5)
    return ir.ops.fused_add_rms_norm(y, r2, w, 1e-5)


COUNTS = {_all_in_place: (3, 0), _all_functional: (0, 3), _mixed: (2, 2), _opaque_between: (2, 1)}


@pytest.mark.parametrize("program", COUNTS, ids=lambda p: p.__name__.strip("_"))
@pytest.mark.usefixtures("in_place")
def test_clones_around_an_in_place_provider(program: Callable[..., Any]) -> None:
    """(inputs given away, clones left): the counts that plugin authors know."""
    args = torch.randn(4, 8), torch.randn(4, 8), torch.randn(4, 8), torch.ones(8)
    gm = traced(program, *args)
    report = run(gm.graph)
    gm.recompile()
    assert (len(report.donated), report.clones_left) == COUNTS[program]
    assert targets(gm.graph).count("t_compile.add_rms_norm_.default") == 2
    kept = [a.clone() for a in args]
    for a, b in zip(program(*(a.clone() for a in args)), gm(*kept), strict=True):
        assert torch.equal(a, b)
    for k in {0, 1, 2, 3} - report.donated:
        assert torch.equal(args[k], kept[k])
