"""In plain eager code a direct call; under any tracer one node; in-place and functional semantics."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from opdock import ir


def test_dispatch_modes_see_the_op_and_eager_code_does_not_pay_for_it() -> None:
    """A user's mode gets the IR op; without one, it gets nothing because the provider is called directly."""
    seen: list[str] = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    args = ir.ops.silu_and_mul.generate_inputs()
    with Mode():
        ir.ops.silu_and_mul(*args)
    assert seen[0] == "opdock_ir.silu_and_mul.default"


def test_fake_tensors_get_fake_results_like_the_real_ones() -> None:
    """Size, strides and dtype, inside and outside of the mode."""
    for name, op in ir.registry.items():
        if not op.has_input_generator:  # a collective needs a group
            continue
        args = op.generate_inputs(dtype=torch.bfloat16)
        real = op.fn(*args)
        with FakeTensorMode() as mode:
            fake_args = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args]
            inside = op.fn(*fake_args)
        outside = op.fn(*fake_args)
        for r, *fakes in zip(*(v if isinstance(v, tuple) else (v,) for v in (real, inside, outside)), strict=True):
            for f in fakes:
                assert (r.shape, r.stride(), r.dtype) == (f.shape, f.stride(), f.dtype), name


def test_b38_result_of_a_transposed_input_has_the_strides_of_the_fake_one() -> None:
    """Real and fake agree on layout."""
    x = torch.randn(1, 8, 4).transpose(1, 2)
    real = ir.ops.rms_norm(x, None, 1e-6)
    with FakeTensorMode() as mode:
        fake = ir.ops.rms_norm(mode.from_tensor(x), None, 1e-6)
    assert real.stride() == fake.stride()


def test_functionalize_vmap_and_device_contexts_work() -> None:
    """Transforms go through the torch op; a device context stays direct."""
    args = ir.ops.silu_and_mul.generate_inputs()
    expected = ir.ops.silu_and_mul(*args)
    assert torch.equal(torch.func.functionalize(ir.ops.silu_and_mul)(*args), expected)
    with torch.device("cpu"), ir.counting() as counts:
        assert torch.equal(ir.ops.silu_and_mul(*args), expected)
    assert counts == {("silu_and_mul", "native"): 1}
    parameter = torch.nn.Parameter(args[0], requires_grad=False)
    assert torch.equal(ir.ops.silu_and_mul(parameter), expected)


@pytest.fixture
def in_place() -> Any:
    """Register an in-place provider of fused_add_rms_norm, and put it in force."""

    @ir.ops.fused_add_rms_norm.register_impl("in_place", inplace=True)
    def provider(
        x: torch.Tensor,
        x_residual: torch.Tensor,
        weight: torch.Tensor | None,
        epsilon: float,
        variance_size: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        y, r = ir.native.fused_add_rms_norm(x, x_residual, weight, epsilon, variance_size)
        return x.copy_(y), x_residual.copy_(r)

    ir.ops.fused_add_rms_norm.set_default(["in_place"])
    return provider


def test_default_overload_clones_for_an_in_place_provider(in_place: Any) -> None:
    """Also when the activations are given by keyword, directly and through func_impl_fn."""
    x, r, w, eps = ir.ops.fused_add_rms_norm.generate_inputs()
    before = x.clone(), r.clone()
    for run in (ir.ops.fused_add_rms_norm, in_place.func_impl_fn, ir.ops.fused_add_rms_norm.overload):
        y, residual = run(x_residual=r, weight=w, epsilon=eps, x=x)
        assert torch.equal(x, before[0]) and torch.equal(r, before[1])
        expected = ir.native.fused_add_rms_norm(x, r, w, eps)
        assert torch.equal(y, expected[0]) and torch.equal(residual, expected[1])


def test_maybe_inplace_gives_the_memory_away(in_place: Any) -> None:
    """The results are the activations; a provider that is not in-place leaves them as they are."""
    x, r, w, eps = ir.ops.fused_add_rms_norm.generate_inputs()
    expected = ir.native.fused_add_rms_norm(x, r, w, eps)
    y, residual = ir.ops.fused_add_rms_norm.maybe_inplace(x, r, w, eps)
    assert (y.data_ptr(), residual.data_ptr()) == (x.data_ptr(), r.data_ptr()) and torch.equal(y, expected[0])
    ir.ops.fused_add_rms_norm.set_default(["native"])
    before = x.clone()
    ir.ops.fused_add_rms_norm.maybe_inplace(x, r, w, eps)
    assert torch.equal(x, before)


def _silu(x: torch.Tensor) -> torch.Tensor:
    return ir.ops.silu_and_mul(x)


def test_b34_changing_a_priority_recompiles() -> None:
    """Default and scope, each seen by compiled code; going back reuses the first graph."""
    torch._dynamo.reset()
    compiled = 0

    def backend(gm: torch.fx.GraphModule, _: Any) -> Any:
        nonlocal compiled
        compiled += 1
        chosen = ir.ops.silu_and_mul.get_priority()[0]
        return lambda *args: (torch.full((1,), float(chosen == "other")),)

    @ir.ops.silu_and_mul.register_impl("other")
    def other(x: torch.Tensor) -> torch.Tensor:
        return x

    ir.ops.silu_and_mul.set_default(["native"])
    fn = torch.compile(_silu, backend=backend)
    x = torch.ones(1, 4)
    assert float(fn(x)) == 0
    ir.ops.silu_and_mul.set_default(["other"])
    assert float(fn(x)) == 1
    with ir.ops.silu_and_mul.set_priority(["native"]):
        assert float(fn(x)) == 0
    ir.ops.silu_and_mul.set_default(["native"])
    assert float(fn(x)) == 0
    assert compiled <= 3


def test_b40_a_clone_before_a_mutation_keeps_its_value() -> None:
    """The op itself asks for no clone to be dropped: eager and compiled are equal bit for bit."""

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        kept = x.clone()
        y = ir.ops.rms_norm(x, w, 1e-5)
        x.mul_(2)
        return y + kept + x

    x, w, _ = ir.ops.rms_norm.generate_inputs()
    torch._dynamo.reset()
    assert torch.equal(fn(x.clone(), w), torch.compile(fn, backend="aot_eager")(x.clone(), w))
