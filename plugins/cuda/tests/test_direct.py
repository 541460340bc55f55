"""opdock_cuda.direct: the kernels past torch's dispatcher give the same, and leave to it what it has to see."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from opdock import ir
from opdock_cuda import direct, library, predicates
from opdock_cuda.priorities import PROVIDED

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
gpu = pytest.mark.gpu


def arguments(op: str, dtype: torch.dtype = torch.bfloat16, tokens: int = 5, device: str = "cuda") -> tuple[Any, ...]:
    """Return arguments of an op by position, defaults too."""
    made = ir.registry[op].generate_inputs(num_tokens=tokens, dtype=dtype, device=torch.device(device))
    return tuple(ir.registry[op].apply_arg_defaults(made))


def copies(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments with tensors of their own memory and the same strides."""
    return tuple(a.detach().clone() if isinstance(a, Tensor) else a for a in args)


def dispatched(op: str) -> Callable[..., Any]:
    """Return what the provider does without the short way."""
    raw = torch.ops.opdock_cuda

    def in_place(kernel: Any, first: int) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            kernel.default(*args)
            return args[first], args[first + 1]

        return call

    calls: dict[str, Callable[..., Any]] = {
        "rms_norm": lambda x, w, e, _: raw.rms_norm(x, w, e),
        "fused_add_rms_norm": lambda x, r, w, e, _: in_place(raw.fused_add_rms_norm_, 0)(x, r, w, e),
        "rms_norm_static_fp8_quant": lambda x, w, s, e, _: raw.rms_norm_static_fp8(x, w, s, e),
        "rms_norm_dynamic_per_token_fp8_quant": lambda x, w, e, b, _: raw.rms_norm_token_fp8(x, w, e, b),
        "fused_add_rms_norm_static_fp8_quant": lambda x, r, w, s, e, _: raw.add_rms_norm_static_fp8(x, r, w, s, e),
        "fused_add_rms_norm_dynamic_per_token_fp8_quant": lambda x, r, w, e, b, _: raw.add_rms_norm_token_fp8(
            x, r, w, e, b
        ),
        "silu_and_mul": raw.silu_and_mul,
        "gelu_and_mul": lambda x, how: raw.gelu_and_mul(x, how == "tanh"),
        "silu_and_mul_static_fp8_quant": lambda x, s, _: raw.silu_and_mul_static_fp8(x, s),
        "silu_and_mul_dynamic_per_token_fp8_quant": lambda x, b, _: raw.silu_and_mul_token_fp8(x, b),
        "static_scaled_fp8_quant": lambda x, s, _: raw.static_fp8(x, s),
        "dynamic_per_token_scaled_fp8_quant": lambda x, b, _: raw.token_fp8(x, b),
        "rotary_embedding": in_place(raw.rotary_embedding_, 1),
    }
    return calls[op]


def assert_same(got: Any, wanted: Any) -> None:
    """Raise unless two results are alike to the bit, strides too."""
    both = zip(got, wanted, strict=True) if isinstance(wanted, tuple) else [(got, wanted)]
    for a, b in both:
        assert (a.shape, a.dtype, a.stride(), a.device) == (b.shape, b.dtype, b.stride(), b.device)
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def test_every_provided_op_has_its_functions() -> None:
    assert sorted(direct.NAMES) == sorted(PROVIDED)
    assert sorted(vars(direct.fits)) == sorted(PROVIDED)
    assert sorted(vars(direct.run)) == sorted((*PROVIDED, direct.FUNCTIONAL))


def test_a_torch_without_the_interface_keeps_the_dispatcher(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    module = SimpleNamespace(connect=lambda *args: asked.append(args) or True, run_fused_add_rms_norm_functional=None)
    monkeypatch.setattr(direct, "CAPSULE", "__no_such_interface__")
    before = dict(vars(direct.run))
    assert direct.connect(module) is False  # type: ignore[arg-type]
    assert asked == []
    assert vars(direct.run) == before


def test_a_module_of_an_older_build_keeps_the_dispatcher() -> None:
    before = dict(vars(direct.run))
    assert direct.connect(SimpleNamespace()) is False  # type: ignore[arg-type]
    assert vars(direct.run) == before


def test_an_interface_of_another_version_keeps_the_dispatcher() -> None:
    before = dict(vars(direct.run))
    assert direct.connect(SimpleNamespace(connect=lambda *_: False, run_fused_add_rms_norm_functional=None)) is False  # type: ignore[arg-type]
    assert vars(direct.run) == before


@pytest.mark.skipif(not library.load(), reason=f"needs the kernels: {library.why_not()}")
@pytest.mark.parametrize("op", PROVIDED)
def test_tensors_of_the_cpu_and_fake_ones_are_not_taken(op: str) -> None:
    args = arguments(op, device="cpu")
    assert getattr(direct.fits, op)(*args) is False
    assert getattr(direct.run, op)(*args) is None
    with FakeTensorMode():
        args = arguments(op)
        assert getattr(direct.fits, op)(*args) is False
        assert getattr(direct.run, op)(*args) is None


@pytest.mark.skipif(not library.load(), reason=f"needs the kernels: {library.why_not()}")
@pytest.mark.parametrize("op", PROVIDED)
def test_other_things_than_tensors_and_too_few_arguments_are_not_taken(op: str) -> None:
    for args in ((), (None,), (1, 2, 3, 4, 5, 6), ("x",) * 7):
        assert getattr(direct.fits, op)(*args) is False
        assert getattr(direct.run, op)(*args) is None


@gpu
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", PROVIDED)
def test_the_short_way_gives_what_the_dispatcher_gives(op: str, dtype: torch.dtype) -> None:
    for tokens in (1, 3, 64):
        args = arguments(op, dtype, tokens)
        mine, theirs = copies(args), copies(args)
        assert getattr(direct.fits, op)(*mine) is True
        made = getattr(direct.run, op)(*mine)
        assert made is not None
        assert_same(made, dispatched(op)(*theirs))
        for a, b in zip(mine, theirs, strict=True):
            assert not isinstance(a, Tensor) or torch.equal(a, b)


@gpu
@pytest.mark.usefixtures("kernels")
def test_the_sum_and_its_norm_may_be_new_tensors() -> None:
    args = arguments("fused_add_rms_norm")
    mine = copies(args)
    made = direct.run.fused_add_rms_norm_functional(*mine)
    assert all(torch.equal(a, b) for a, b in zip(mine[:3], args[:3], strict=True))
    assert_same(made, dispatched("fused_add_rms_norm")(*copies(args)))


@gpu
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dims", [(64,), (3, 64), (2, 3, 64), (2, 1, 3, 64)])
def test_views_and_other_ranks_give_the_same_where_they_are_taken(dims: tuple[int, ...]) -> None:
    wide = torch.randn(*dims[:-1], 3 * dims[-1], device="cuda")
    for x in (wide[..., :64].contiguous(), wide[..., 64:128], wide[..., 1:65], wide[..., :64].unsqueeze(0)):
        w = torch.randn(64, device="cuda")
        made = direct.run.rms_norm(x, w, 1e-6, None)
        if len(x.shape) <= 3 or x.is_contiguous():
            assert made is not None
        if made is not None:
            assert_same(made, torch.ops.opdock_cuda.rms_norm(x, w, 1e-6))


@gpu
@pytest.mark.usefixtures("kernels")
def test_what_fits_is_what_the_predicate_takes() -> None:
    """Whatever the compiled code says yes to, the predicate says yes to, too, when it looks for itself."""
    w = torch.ones(64, device="cuda")
    base = torch.randn(4, 4, 192, device="cuda")
    several = [
        base, base[..., :64], base[0, :, :64], base[:, 0, 64:128], base[0, 0, :64], base[..., ::3], base[:0, :, :64],
        base[0, :, :64].t(), base[0, :1, :64].expand(4, 64), base[..., :64].half(), base[..., :64].double(),
        base[..., :32], base[:, :, :64].transpose(0, 1), base.cpu()[..., :64], base[..., :64].to(torch.int64),
        torch.nn.Parameter(base[..., :64]), base[..., :64][None, None],
    ]  # fmt: skip
    agreed = 0
    for x in several:
        for weight in (w, None, w.half(), w[:32], w.cpu(), w[None]):
            said = direct.fits.rms_norm(x, weight, 1e-6, None)
            both = direct.fits.fused_add_rms_norm(x, x.detach().clone(), weight, 1e-6, None)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(predicates, "fits", SimpleNamespace(**dict.fromkeys(PROVIDED, lambda *_: False)))
                if said:
                    assert predicates.rms_norm(x, weight, 1e-6, None) is True
                if both:
                    assert predicates.fused_add_rms_norm(x, x.detach().clone(), weight, 1e-6, None) is True
            agreed += said + both
    assert agreed >= 16


@gpu
@pytest.mark.usefixtures("kernels")
def test_arguments_that_no_kernel_takes_are_not_launched() -> None:
    x, w = torch.randn(4, 64, device="cuda"), torch.ones(64, device="cuda")
    run = direct.run
    for args in (
        (x, w, 1e-6, 32), (x.double(), w.double(), 1e-6, None), (x, w.half(), 1e-6, None), (x, w[:32], 1e-6, None),
        (x, w.cpu(), 1e-6, None), (x.t(), w, 1e-6, None), (x[:0], w, 1e-6, None), (x, w, "1e-6", None),
        (x.expand(2, 4, 64).transpose(0, 2), w, 1e-6, None), (x.clone().requires_grad_(), w, 1e-6, None),
    ):  # fmt: skip
        assert run.rms_norm(*args) is None
    assert run.fused_add_rms_norm(x, x, w, 1e-6, None) is None
    assert run.fused_add_rms_norm(x, x[:2], w, 1e-6, None) is None
    assert run.gelu_and_mul(x, "tan") is None
    assert run.silu_and_mul(torch.randn(4, 65, device="cuda")) is None
    assert run.static_scaled_fp8_quant(x, torch.ones(2, device="cuda"), torch.float8_e4m3fn) is None
    assert run.static_scaled_fp8_quant(x, torch.ones(1, device="cuda"), torch.float8_e5m2) is None


@gpu
@pytest.mark.usefixtures("kernels")
def test_a_gradient_that_is_wanted_is_left_to_the_dispatcher_only_where_gradients_are_on() -> None:
    x, w = torch.randn(4, 64, device="cuda"), torch.nn.Parameter(torch.ones(64, device="cuda"))
    assert direct.fits.rms_norm(x, w, 1e-6, None) is False
    assert direct.run.rms_norm(x, w, 1e-6, None) is None
    assert direct.run.rms_norm(x, w.detach(), 1e-6, None) is not None
    with torch.no_grad():
        assert direct.run.rms_norm(x, w, 1e-6, None).requires_grad is False
    with torch.inference_mode():
        assert direct.run.rms_norm(x, w, 1e-6, None).is_inference()


@gpu
@pytest.mark.usefixtures("kernels")
@pytest.mark.filterwarnings("ignore")  # torch.jit is deprecated, and says so
def test_whoever_has_to_see_the_call_sees_it() -> None:
    x, w = torch.randn(4, 64, device="cuda"), torch.ones(64, device="cuda")

    class Sees(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    assert direct.run.rms_norm(x, w, 1e-6, None) is not None
    with Sees():
        assert direct.run.rms_norm(x, w, 1e-6, None) is None
    with torch.overrides.TorchFunctionMode():
        assert direct.run.rms_norm(x, w, 1e-6, None) is None
    with torch.profiler.profile():
        assert direct.run.rms_norm(x, w, 1e-6, None) is None
    seen = []
    torch.jit.trace(lambda x: (seen.append(direct.run.rms_norm(x, w, 1e-6, None)), x + 1)[1], (x,), check_trace=False)
    assert seen
    assert all(made is None for made in seen)
    seen.clear()
    torch.vmap(lambda x: (seen.append(direct.run.rms_norm(x, w, 1e-6, None)), x + 1)[1])(x)
    assert seen == [None]
    assert direct.run.rms_norm(torch._neg_view(x), w, 1e-6, None) is None
    assert direct.run.rms_norm(torch._efficientzerotensor(4, 64, device="cuda"), w, 1e-6, None) is None


@gpu
@pytest.mark.usefixtures("kernels", "registered")
def test_compiled_code_that_calls_a_provider_has_no_break() -> None:
    from opdock_cuda import providers

    x, w = torch.randn(4, 64, device="cuda"), torch.ones(64, device="cuda")
    compiled = torch.compile(lambda x: providers.rms_norm.impl_fn(x, w, 1e-6) * 2, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), torch.ops.opdock_cuda.rms_norm(x, w, 1e-6) * 2)


@gpu
@pytest.mark.usefixtures("kernels")
def test_the_launch_is_on_the_current_stream() -> None:
    x, w = torch.zeros(64, 4096, device="cuda"), torch.ones(4096, device="cuda")
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        x.fill_(1.0)
        y = direct.run.rms_norm(x, w, 0.0, None)
    side.synchronize()
    assert torch.equal(y, torch.ones_like(y))


@gpu
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("op", PROVIDED)
def test_a_cuda_graph_holds_the_launch(op: str) -> None:
    args = arguments(op)
    mine, theirs = copies(args), copies(args)
    getattr(direct.run, op)(*copies(args))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = getattr(direct.run, op)(*mine)
    assert made is not None
    graph.replay()
    torch.cuda.synchronize()
    assert_same(made, dispatched(op)(*theirs))


@gpu
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("op", PROVIDED)
def test_references_and_memory_stay_as_they_were(op: str) -> None:
    args = copies(arguments(op))
    fits, run = getattr(direct.fits, op), getattr(direct.run, op)
    refused = (*args[:-1], object())
    run(*args)
    torch.cuda.synchronize()
    gc.collect()
    counts, held = [sys.getrefcount(a) for a in (*args, torch.float8_e4m3fn)], torch.cuda.memory_allocated()
    for _ in range(300):
        fits(*args)
        run(*args)
        run(*refused)
    assert [sys.getrefcount(a) for a in (*args, torch.float8_e4m3fn)] == counts
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == held


@gpu
@pytest.mark.usefixtures("kernels")
def test_a_tensor_of_another_device_than_the_current_one_is_left_to_the_dispatcher() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    x, w = torch.randn(4, 64, device="cuda:1"), torch.ones(64, device="cuda:1")
    assert direct.fits.rms_norm(x, w, 1e-6, None) is True
    assert direct.run.rms_norm(x, w, 1e-6, None) is None
    with torch.cuda.device(1):
        assert_same(direct.run.rms_norm(x, w, 1e-6, None), torch.ops.opdock_cuda.rms_norm(x, w, 1e-6))
