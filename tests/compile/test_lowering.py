"""Each call of an IR op becomes the traced body of the provider that its arguments choose."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from graphs import targets, traced
from torch import Tensor, fx

from opdock import ir
from opdock.compile import LoweringError
from opdock.compile.lowering import Lowering, refuse_leftovers
from opdock.compile.passes import run
from opdock.compile.report import GraphReport

X, R, W = torch.randn(4, 8), torch.randn(4, 8), torch.ones(8)


def register(op: Any, name: str = "t_one", **options: Any) -> Any:
    """Return a decorator that registers a provider and puts it first."""

    def decorate(fn: Any) -> Any:
        impl = op.register_impl(name, **options)(fn)
        op.set_default([name, "native"])
        return impl

    return decorate


def lowered(fn: Any, *args: Tensor, symbolic: bool = False) -> tuple[fx.GraphModule, GraphReport]:
    """Return the lowered graph and its report, having compared it with eager code bit for bit."""
    gm = traced(fn, *args, symbolic=symbolic)
    report = run(gm.graph)
    gm.recompile()
    for a, b in zip(_flat(fn(*args)), _flat(gm(*args)), strict=True):
        assert torch.equal(a, b)
    return gm, report


def _flat(results: Any) -> list[Tensor]:
    return list(results) if isinstance(results, tuple | list) else [results]


def _three(x: Tensor, w: Tensor) -> Tensor:
    y = ir.ops.rms_norm(x, w, 1e-5)
    y = ir.ops.rms_norm(y, w, 1e-5)
    return ir.ops.rms_norm(y, w, 1e-5, 4)


def test_what_breaks_batch_invariance_is_warned_about_where_it_is_lowered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, for an op that is in the graph; the ops that are not say nothing."""

    def t_lowering_varies(x: Tensor) -> Tensor:
        return x + 1

    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    op = ir.register_op(t_lowering_varies)
    with caplog.at_level(logging.WARNING, "opdock"):
        for other in (op, ir.ops.all_reduce):
            other.set_default(["native"])
        gm = traced(lambda x: op(op(x)), X)
        assert not caplog.text
        run(gm.graph)
    assert caplog.text.count("results may depend on the batch") == 1 and "Op t_lowering_varies" in caplog.text


def test_each_node_says_which_provider_it_became() -> None:
    """The third call is none that the provider takes."""

    @register(ir.ops.rms_norm, supports_args=lambda x, weight, epsilon, variance_size=None: variance_size is None)
    def provider(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
        return torch.ops.t_compile.rms_norm(x, weight, epsilon)

    gm, report = lowered(_three, X, W)
    assert report.selected_impls == {"rms_norm": {"rms_norm": "t_one", "rms_norm_1": "t_one", "rms_norm_2": "native"}}
    assert targets(gm.graph).count("t_compile.rms_norm.default") == 2
    last = report.choices[-1]
    assert [(v.provider, v.chosen) for v in last.verdicts] == [("t_one", False), ("native", True)]
    assert "variance_size" in last.verdicts[0].reason


def test_calls_of_one_kind_are_traced_once() -> None:
    _, report = lowered(_three, X, W)
    assert len(report.choices) == 3
    assert report.bodies == 2


def test_calls_that_share_a_body_have_memory_of_their_own() -> None:
    """A clone that one body makes must not be taken for the clone of another."""
    gm = traced(_three, X, W)
    run(gm.graph)
    values = [n.meta["val"] for n in gm.graph.nodes if n.op == "call_function" and "mul" in str(n.target)]
    storages = [v.untyped_storage()._cdata for v in values]
    assert len(set(storages)) == len(storages) > 3


def test_keywords_and_defaults_are_arguments_like_others() -> None:
    gm = traced(lambda x, w: torch.ops.opdock_ir.rms_norm(epsilon=1e-5, weight=w, x=x), X, W)
    report = run(gm.graph)
    gm.recompile()
    assert len(report.choices) == 1
    assert torch.equal(gm(X, W), ir.native.rms_norm(X, W, 1e-5))


def test_an_op_that_is_registered_later_is_lowered_too() -> None:
    lowering = Lowering({}, GraphReport())

    @ir.register_op(name="t_late")
    def late(x: Tensor) -> Tensor:
        return x + 1

    gm = traced(lambda x: late(x) * 2, X)
    lowering.lower(gm.graph, also_mutating=True)
    assert targets(gm.graph) == ["aten.add.Tensor", "aten.mul.Tensor"]


def test_a_list_of_tensors_is_an_argument() -> None:
    @ir.register_op(name="t_list")
    def total(parts: Sequence[Tensor], scale: float = 2.0) -> Tensor:
        return functools.reduce(torch.add, parts) * scale

    lowered(lambda x, r: total([x, r, x]), X, R)


def test_a_provider_may_call_another_ir_op() -> None:
    """The inner call is lowered by its own priority, and is no choice of the user's model."""

    @register(ir.ops.fused_add_rms_norm)
    def provider(
        x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> tuple[Tensor, Tensor]:
        total = x + x_residual
        return ir.ops.rms_norm(total, weight, epsilon, variance_size), total

    _, report = lowered(lambda x, r, w: ir.ops.fused_add_rms_norm(x, r, w, 1e-5), X, R, W)
    assert report.selected_impls == {"fused_add_rms_norm": {"fused_add_rms_norm": "t_one"}}


def calling(op: Any) -> Any:
    """Return a provider that calls ``op``."""

    def provider(x: Tensor) -> Tensor:
        return op(x) + 0

    return provider


def test_a_provider_that_calls_its_own_op_is_an_error() -> None:
    @ir.register_op(name="t_self")
    def itself(x: Tensor) -> Tensor:
        return x + 1

    register(itself)(calling(itself))
    gm = traced(itself, X)
    with pytest.raises(LoweringError, match="call one another without end"):
        run(gm.graph)


def _two(x: Tensor, w: Tensor) -> Tensor:
    y = ir.ops.rms_norm(x, w, 1e-5)
    return ir.ops.fused_add_rms_norm(y, x, w, 1e-5)[0]


def test_the_number_of_tokens_stays_a_symbol() -> None:
    gm, _ = lowered(_two, X, W, symbolic=True)
    shapes = next(n.meta["val"] for n in gm.graph.nodes if n.op == "placeholder").fake_mode.shape_env
    assert not shapes.guards
    for tokens in (1, 5, 300):
        x = torch.randn(tokens, 8)
        assert torch.equal(gm(x, W), _two(x, W))


def test_in_place_aten_ops_become_functions() -> None:
    """Inductor takes few of them; as functions it fuses them all."""

    @register(ir.ops.fused_add_rms_norm, inplace=True)
    def provider(
        x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> tuple[Tensor, Tensor]:
        y, total = ir.native.fused_add_rms_norm(x, x_residual, weight, epsilon, variance_size)
        return x.copy_(y), x_residual.copy_(total)

    gm, _ = lowered(lambda x, r, w: ir.ops.fused_add_rms_norm(x, r, w, 1e-5), X, R, W)
    assert not [t for t in targets(gm.graph) if "_." in t]


def test_a_result_written_with_out_is_a_function_too() -> None:
    @register(ir.ops.silu_and_mul)
    def provider(x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        out = torch.empty_like(up, memory_format=torch.contiguous_format)
        return torch.mul(torch.nn.functional.silu(gate), up, out=out)

    gm, _ = lowered(ir.ops.silu_and_mul, X)
    assert not [t for t in targets(gm.graph) if "out" in t]


def test_aten_writes_beside_an_opaque_one_are_lowered_right() -> None:
    @register(ir.ops.fused_add_rms_norm, inplace=True)
    def provider(
        x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> tuple[Tensor, Tensor]:
        x.add_(x_residual)
        x_residual.zero_()
        torch.ops.t_compile.add_rms_norm_(x, x_residual, weight, epsilon)
        return x, x_residual

    lowered(lambda x, r, w: ir.ops.fused_add_rms_norm(x, r, w, 1e-5), X, R, W)


def test_a_constant_of_a_provider_travels_with_its_body() -> None:
    @register(ir.ops.silu_and_mul)
    def provider(x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up * torch.tensor([1.0, 1.0])[0]

    lowered(lambda x: ir.ops.silu_and_mul(ir.ops.silu_and_mul(x)), X)


def test_a_call_that_is_left_is_an_error() -> None:
    gm = traced(_three, X, W)
    with pytest.raises(LoweringError, match="3 calls of IR ops are left after lowering: rms_norm, rms_norm_1"):
        refuse_leftovers(gm.graph)


def test_an_op_that_was_taken_back_is_an_error_that_says_so() -> None:
    from opdock.ir.registering import unregister_op

    @ir.register_op(name="t_gone")
    def gone(x: Tensor) -> Tensor:
        return x + 1

    gm = traced(gone, X)
    unregister_op("t_gone")
    with pytest.raises(LoweringError, match="no registered IR op has that torch op"):
        run(gm.graph)


def test_an_explicit_native_definition_is_no_node() -> None:
    gm = traced(lambda x, w: ir.native.rms_norm(x, w, 1e-5), X, W)
    assert not run(gm.graph).choices
