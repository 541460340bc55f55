"""A provider that does not keep its promises is an error when the model is compiled: op, provider, file and line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import traced
from torch import Tensor

from opdock import ir
from opdock.compile import LoweringError
from opdock.compile.passes import run

X = torch.randn(4, 8)
op = ir.ops.gelu_and_mul


def _reads_data(x: Tensor, approximate: str = "none") -> Tensor:
    if x.sum().item() > 0:
        return ir.native.gelu_and_mul(x, approximate)
    return ir.native.gelu_and_mul(-x, approximate)


def _no_fake(x: Tensor, approximate: str = "none") -> Tensor:
    import numpy as np

    return torch.from_numpy(np.asarray(x[..., :4]))


def _other_dtype(x: Tensor, approximate: str = "none") -> Tensor:
    return ir.native.gelu_and_mul(x, approximate).double()


def _other_size(x: Tensor, approximate: str = "none") -> Tensor:
    return ir.native.gelu_and_mul(x, approximate)[:2]


def _other_strides(x: Tensor, approximate: str = "none") -> Tensor:
    return ir.native.gelu_and_mul(x, approximate).t().contiguous().t()


def _its_input(x: Tensor, approximate: str = "none") -> Tensor:
    return x[..., :4]


def _writes(x: Tensor, approximate: str = "none") -> Tensor:
    x.mul_(2)
    return ir.native.gelu_and_mul(x, approximate)


def _two_results(x: Tensor, approximate: str = "none") -> Any:
    return ir.native.gelu_and_mul(x, approximate), x * 1


def _random(x: Tensor, approximate: str = "none") -> Tensor:
    return torch.nn.functional.dropout(ir.native.gelu_and_mul(x, approximate))


STATE = torch.zeros(())


def _counts(x: Tensor, approximate: str = "none") -> Tensor:
    STATE.add_(1)
    return ir.native.gelu_and_mul(x, approximate) + STATE


FAULTS = {
    _two_results: "returns 2 results",
    _random: "draws random numbers",
    _counts: "writes a tensor that is no argument",
    _reads_data: "cannot be traced",
    _no_fake: "cannot be traced",
    _other_dtype: "returns another result 0",
    _other_size: "returns another result 0",
    _other_strides: "returns another result 0",
    _its_input: "returns its input x, or a view of it",
    _writes: "writes x, which it does not declare",
}


@pytest.mark.parametrize("fn", FAULTS, ids=lambda f: f.__name__.strip("_"))
def test_a_fault_of_a_provider_names_op_provider_and_line(fn: Callable[..., Any]) -> None:
    fn.__annotations__["return"] = "Tensor"
    op.register_impl("t_bad")(fn)
    op.set_default(["t_bad", "native"])
    with pytest.raises(LoweringError) as caught:
        run(traced(op, X).graph)
    text = str(caught.value)
    assert FAULTS[fn] in text
    assert "op 'gelu_and_mul', provider 't_bad'" in text
    assert f"{__file__}:{fn.__code__.co_firstlineno}" in text
    assert "Remedy:" in text


def test_a_failing_trace_shows_the_line_that_failed() -> None:
    op.register_impl("t_bad")(_reads_data)
    op.set_default(["t_bad", "native"])
    with pytest.raises(LoweringError, match=r"if x\.sum\(\)\.item\(\) > 0:"):
        run(traced(op, X).graph)


def _predicate_on_data(x: Tensor, approximate: str = "none") -> bool:
    return bool((x > 0).any())


def _predicate_on_address(x: Tensor, approximate: str = "none") -> bool:
    return x.data_ptr() % 16 == 0


def _predicate_that_raises(x: Tensor, approximate: str = "none") -> bool:
    raise KeyError(approximate)


@pytest.mark.parametrize("predicate", [_predicate_on_data, _predicate_on_address, _predicate_that_raises])
def test_a_predicate_that_cannot_judge_fake_tensors_is_named(predicate: Callable[..., Any]) -> None:
    """Case B32: a fake tensor's address reads 0, so every test of alignment would say yes."""
    op.register_impl("t_bad", supports_args=predicate)(ir.native.gelu_and_mul)
    op.set_default(["t_bad", "native"])
    with pytest.raises(LoweringError, match="supports_args of provider t_bad of op gelu_and_mul fails"):
        run(traced(op, X).graph)


def test_a_predicate_on_the_number_of_tokens_makes_one_graph_for_each_answer() -> None:
    """Case B32: it is right for every size, and costs a compilation."""

    @op.register_impl("t_many", supports_args=lambda x, approximate="none": x.shape[0] >= 16)
    def many(x: Tensor, approximate: str = "none") -> Tensor:
        return ir.native.gelu_and_mul(x, approximate) + 1

    op.set_default(["t_many", "native"])
    compiled = torch.compile(op, backend="opdock_eager", dynamic=True, fullgraph=True)
    with torch.no_grad():
        for tokens in (2, 4, 15, 16, 40):
            x = torch.randn(tokens, 8)
            assert torch.equal(compiled(x), op(x))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


def _kernel_lies(x: Tensor, approximate: str = "none") -> Tensor:
    return torch.ops.t_compile.permuted(ir.native.gelu_and_mul(x, approximate))


def test_a_kernel_that_lays_its_result_out_otherwise_than_its_fake_is_found() -> None:
    """Compiled code believes the fake: it would read wrong numbers."""
    op.register_impl("t_bad")(_kernel_lies)
    op.set_default(["t_bad", "native"])
    state = torch.random.get_rng_state()
    with pytest.raises(LoweringError, match="has a fake implementation that says otherwise than its kernel") as caught:
        run(traced(op, X).graph)
    assert f"{__file__}:{_kernel_lies.__code__.co_firstlineno}" in str(caught.value)
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_kernel_that_writes_what_its_schema_does_not_say_is_found() -> None:
    """Case B41: compiled code would take the clone of that argument away."""
    norm = ir.ops.fused_add_rms_norm

    @norm.register_impl("t_bad", inplace=True)
    def provider(
        x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> tuple[Tensor, Tensor]:
        torch.ops.t_compile.writes_both_(x, x_residual)
        return x, x_residual

    norm.set_default(["t_bad"])
    with pytest.raises(LoweringError, match="calls a torch op whose schema is not true"):
        run(traced(lambda x, r: norm(x, r, None, 1e-5), X, X + 1).graph)
