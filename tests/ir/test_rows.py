"""Native definitions row by row, which VLLM_BATCH_INVARIANT=1 asks for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from opdock import ir
from opdock.errors import UnsupportedError

NAMES = sorted(n for n, op in ir.registry.items() if op.impls["native"].invariant.generation < 0)
SIZES = [1, 2, 3, 7, 8, 33]


@pytest.fixture
def _on(taken_back: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        ir.registry[name].set_default(["native"])
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    for name in NAMES:
        assert ir.registry[name].get_priority() == ["native"]


def _several(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def _part(op: ir.IrOp, args: tuple[Any, ...], start: int, end: int, shift: int) -> list[Any]:
    """Return the arguments with some rows of the activations, which begin ``shift`` elements into their memory."""
    made = list(args)
    for i in op.activation_indices:
        rows = args[i][start:end]
        memory = torch.empty(rows.numel() + shift, dtype=rows.dtype)
        made[i] = memory[shift:].view(rows.shape).copy_(rows)
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("_on")
def test_a_rows_bits_are_the_same_in_any_batch_at_any_place(name: str, dtype: torch.dtype) -> None:
    """Alone, among 2 to 33 rows, wherever the memory begins, on one thread and on two."""
    op, before = ir.registry[name], torch.get_num_threads()
    args = op.generate_inputs(num_tokens=40, hidden_size=576, dtype=dtype)
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            alone = [_several(op.fn(*_part(op, args, i, i + 1, 0))) for i in range(40)]
            for size in SIZES:
                for start, shift in ((0, 0), (5, 1), (7, 3)):
                    made = _several(op.fn(*_part(op, args, start, start + size, shift)))
                    for row in range(size):
                        for whole, one in zip(made, alone[start + row], strict=True):
                            assert torch.equal(whole[row : row + 1].view(torch.uint8), one.view(torch.uint8))
    finally:
        torch.set_num_threads(before)


def test_without_the_mode_some_native_definition_depends_on_the_batch() -> None:
    """What the mode is for: on CPUs gelu takes another kernel for a single row."""
    x = torch.randn(40, 2 * 576)
    whole = ir.native.gelu_and_mul(x)
    if torch.equal(whole, torch.cat([ir.native.gelu_and_mul(x[i : i + 1]) for i in range(40)])):
        pytest.skip("not on this CPU")
    assert not ir.registry["gelu_and_mul"].impls["native"].batch_invariant


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("_on")
def test_row_by_row_computes_what_the_definition_computes(name: str) -> None:
    """In all shapes: no rows, one dimension, three."""
    op = ir.registry[name]
    args = op.generate_inputs(num_tokens=6, hidden_size=64)
    for shape in ((0, -1), (6, -1), (2, 3, -1), (1, -1)):
        given = list(args)
        for i in op.activation_indices:
            given[i] = args[i][: 0 if shape[0] == 0 else 1 if shape[0] == 1 else 6]
            given[i] = given[i].view(*shape[:-1], args[i].shape[-1])
        if len(shape) > 2 and "per_token" in name:
            continue
        for made, expected in zip(_several(op.fn(*given)), _several(op.native(*given)), strict=True):
            assert made.shape == expected.shape and made.dtype == expected.dtype
            torch.testing.assert_close(made.float(), expected.float())


@pytest.mark.usefixtures("_on")
def test_explain_says_that_native_runs_row_by_row() -> None:
    """And dispatch returns what declares the promise."""
    op, args = ir.registry["rms_norm"], (torch.randn(3, 8), None, 1e-5)
    choice = op.explain(*args)
    assert choice.winner.provider == "native" and choice.winner.batch_invariant
    assert choice.reason == "first in the priority; VLLM_BATCH_INVARIANT=1: row by row"
    assert op.dispatch(*args) is choice.winner and op.current().key == "native@-1"


@pytest.mark.usefixtures("taken_back")
def test_the_mode_is_followed_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read when it is used."""
    op = ir.registry["gelu_and_mul"]
    op.set_default(["native"])
    x = torch.randn(4, 64)
    assert op.dispatch(x) is op.impls["native"]
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert op.dispatch(x) is op.impls["native"].invariant is not op.impls["native"]
    monkeypatch.delenv("VLLM_BATCH_INVARIANT")
    assert op.dispatch(x) is op.impls["native"]


@pytest.mark.usefixtures("_on")
def test_code_for_any_number_of_rows_is_refused_by_the_ops_name() -> None:
    """A loop over rows cannot be compiled for a number that is not known."""
    run = ir.registry["rms_norm"].impls["native"].invariant.impl_fn
    with pytest.raises(UnsupportedError, match="Op rms_norm cannot run row by row") as caught:
        make_fx(lambda x: run(x, None, 1e-5, None), tracing_mode="symbolic")(torch.randn(3, 8))
    assert caught.value.why and caught.value.remedy


def test_ops_that_need_a_group_do_not_run_row_by_row() -> None:
    """A collective for each row would be another op."""
    assert NAMES and not [n for n in NAMES if "all_reduce" in n]
