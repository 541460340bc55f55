"""Every tracer and transform sees one node, whatever it traces: function, module, the op itself, a keyword call."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from opdock import ir
from opdock.ir.registering import PublicOp

X, W = torch.linspace(-1, 1, 32).reshape(4, 8), torch.linspace(0, 1, 8)
Traced = Callable[[Callable[..., Any], Any], Any]


def nodes(gm: Any, overload: Any) -> int:
    """Return how many calls of ``overload`` the graph and its subgraphs hold; -1 if other computation is there."""
    modules = [m for m in gm.modules() if isinstance(getattr(m, "graph", None), torch.fx.Graph)]
    calls = [n.target for m in modules for n in m.graph.nodes if n.op == "call_function"]
    harmless = ("add", "vmap", "batch", "lazy_load", "getitem")
    others = [t for t in calls if t is not overload and not any(word in str(t) for word in harmless)]
    return -1 if others else calls.count(overload)


def dynamo(fn: Callable[..., Any], *args: Any) -> Any:
    """Return the one graph that Dynamo makes of ``fn``."""
    torch._dynamo.reset()
    got: list[Any] = []

    def backend(gm: Any, _: Any) -> Any:
        got.append(gm)
        return gm.forward

    torch.compile(fn, fullgraph=True, backend=backend)(*args)
    assert len(got) == 1
    return got[0]


def aot(fn: Callable[..., Any], *args: Any) -> Any:
    """Return the graph after AOTAutograd."""
    torch._dynamo.reset()
    got: list[Any] = []

    def backend(gm: Any, _: Any) -> Any:
        from functorch.compile import make_boxed_func

        got.append(gm)
        return make_boxed_func(gm.forward)

    with torch.no_grad():
        torch.compile(fn, fullgraph=True, backend=aot_autograd(fw_compiler=backend))(*args)
    return got[0]


class Module(torch.nn.Module):
    """A layer that holds a weight and calls the op."""

    def __init__(self, op: Callable[..., Any]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(W.clone())
        self.op = op

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.op(x, self.weight, 1e-6)


class Log(TorchDispatchMode):
    """Counts the ops that reach a dispatch mode."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def seen_by_mode(fn: Callable[..., Any], overload: Any) -> int:
    """Return how often a user's dispatch mode sees the overload."""
    with Log() as log:
        fn(X, W)
    return log.seen.count(overload)


def held(op: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls the op as an attribute of an object."""
    holder = types.SimpleNamespace(op=op)
    return lambda x, w: holder.op(x, w, 1e-6)


TRACERS: dict[str, Callable[[Any, Any, Any], int]] = {
    "dynamo": lambda f, op, o: nodes(dynamo(f, X, W), o),
    "dynamo of a module": lambda f, op, o: nodes(dynamo(Module(op), X), o),
    "dynamo of the op": lambda f, op, o: nodes(dynamo(op, X, W, 1e-6), o),
    "dynamo of an attribute": lambda f, op, o: nodes(dynamo(held(op), X, W), o),
    "dynamo of vmap": lambda f, op, o: nodes(dynamo(torch.vmap(f, (0, None)), X.expand(2, 4, 8), W), o),
    "aot": lambda f, op, o: nodes(aot(f, X, W), o),
    "make_fx": lambda f, op, o: nodes(make_fx(f)(X, W), o),
    "make_fx fake": lambda f, op, o: nodes(make_fx(f, tracing_mode="fake")(X, W), o),
    "make_fx symbolic": lambda f, op, o: nodes(make_fx(f, tracing_mode="symbolic")(X, W), o),
    "make_fx pre_dispatch": lambda f, op, o: nodes(make_fx(f, pre_dispatch=True)(X, W), o),
    "make_fx of functionalize": lambda f, op, o: nodes(make_fx(torch.func.functionalize(f))(X, W), o),
    "fx": lambda f, op, o: nodes(torch.fx.symbolic_trace(f), o),
    "fx of a module": lambda f, op, o: nodes(torch.fx.symbolic_trace(Module(op)), o),
    "fx with only the weight traced": lambda f, op, o: nodes(torch.fx.symbolic_trace(lambda w: op(X, w, 1e-6)), o),
    "export strict": lambda f, op, o: nodes(torch.export.export(Module(op), (X,), strict=True).graph_module, o),
    "export": lambda f, op, o: nodes(torch.export.export(Module(op), (X,), strict=False).graph_module, o),
    "a dispatch mode": lambda f, op, o: seen_by_mode(f, o),
}


@pytest.fixture
def op() -> Any:
    """An op with both overloads, the first of which has the signature of rms_norm."""

    @ir.register_op(activations=["x"], allow_inplace=True)
    def t_traced(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, size: int | None = None) -> torch.Tensor:
        return x * 2 if weight is None else x * weight

    return t_traced


@pytest.mark.parametrize("overload", ["default", "maybe_inplace"])
@pytest.mark.parametrize("priority", [None, ["other", "native"]], ids=["native", "a provider with a predicate"])
@pytest.mark.parametrize("tracer", TRACERS)
def test_one_node_whatever_traces(
    tracer: str, priority: list[str] | None, overload: str, op: PublicOp[..., Any]
) -> None:
    """The call is a node of the overload, no matter which provider would run."""

    def other(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, size: int | None = None) -> torch.Tensor:
        raise AssertionError("a provider that is traced through")

    if priority:
        op.register_impl("other", supports_args=lambda x, weight, epsilon, size=None: x.device.type == "meta")(other)
        op.set_default(priority)
    public = op if overload == "default" else op.maybe_inplace

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return public(x, weight=w, epsilon=1e-6) + 1  # type: ignore[no-any-return]

    assert TRACERS[tracer](fn, public, public.torch_op) == 1


@pytest.mark.parametrize("inside", [True, False])
def test_fake_tensors_run_the_fake_not_a_provider(inside: bool, op: PublicOp[..., Any]) -> None:
    """In their mode and outside of it."""

    @op.register_fake
    def fake(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, size: int | None = None) -> torch.Tensor:
        return x.new_empty(7, 7)

    mode = FakeTensorMode()
    with mode:
        x, w = torch.empty(4, 8), torch.empty(8)
        made = op(x, w, 1e-6) if inside else None
    made = op(x, w, 1e-6) if made is None else made
    assert isinstance(made, FakeTensor) and made.shape == (7, 7)


def test_vmap_runs_an_opaque_kernel_row_by_row(op: PublicOp[..., Any]) -> None:
    """A kernel that only knows memory is right under vmap too."""

    @op.register_impl("opaque")
    def opaque(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, size: int | None = None) -> torch.Tensor:
        return torch.from_numpy(x.numpy() * 3)

    op.set_default(["opaque"])
    x = X.expand(2, 4, 8).contiguous()
    assert torch.equal(torch.vmap(lambda row: op(row, W, 1e-6))(x), x * 3)


def test_dynamic_batch_makes_one_graph(op: PublicOp[..., Any]) -> None:
    """The op adds no guard on sizes."""
    torch._dynamo.reset()
    compiled = 0

    def backend(gm: Any, _: Any) -> Any:
        nonlocal compiled
        compiled += 1
        return gm.forward

    fn = torch.compile(lambda x: ir.ops.rms_norm(x, W, 1e-6), backend=backend, dynamic=True)
    for rows in (2, 3, 50):
        fn(torch.randn(rows, 8))
    assert compiled == 1


def test_the_native_namespace_is_traced_through(op: PublicOp[..., Any]) -> None:
    """What `-op` asks for leaves no node."""
    gm = dynamo(lambda x, w: ir.native.t_traced(x, w, 1e-6), X, W)
    assert nodes(gm, op.torch_op) != 1
    assert ir.native.t_traced.maybe_inplace is ir.native.t_traced


def test_an_op_of_somebody_else_is_traced_through_its_namespace(op: PublicOp[..., Any]) -> None:
    """ir.ops serves ops that are registered later."""
    assert nodes(dynamo(lambda x, w: ir.ops.t_traced(x, w, 1e-6), X, W), op.torch_op) == 1


def test_compiled_code_runs_what_the_priority_says(op: PublicOp[..., Any]) -> None:
    """A backend that knows nothing of opdock runs the torch op, and with it the priority."""

    @op.register_impl("tenfold")
    def tenfold(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, size: int | None = None) -> torch.Tensor:
        return x * 10

    torch._dynamo.reset()
    fn = torch.compile(lambda x: op(x, None, 1e-6), backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        assert torch.equal(fn(X), X * 2)
        with op.set_priority(["tenfold"]):
            assert torch.equal(fn(X), X * 10)
        assert torch.equal(fn(X), X * 2)


def test_a_list_of_tensors_is_looked_into() -> None:
    """A traced tensor in a list is seen, too."""

    @ir.register_op
    def t_list(x: torch.Tensor, others: list[torch.Tensor]) -> torch.Tensor:
        return x + sum(others)

    assert torch.equal(t_list(X, [X, X]), X * 3)
    gm = torch.fx.symbolic_trace(lambda w: t_list(X, [w]))
    assert nodes(gm, t_list.torch_op) == 1


@pytest.mark.parametrize("what", ["import opdock.ir", "from opdock import ir; ir.ops.rms_norm"])
def test_importing_imports_no_dynamo(what: str) -> None:
    """`import opdock.ir` imports not even torch; using an op does not import torch._dynamo, which takes a second."""
    code = f"import sys; {what}; print('torch' in sys.modules, 'torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == (["False", "False"] if what == "import opdock.ir" else ["True", "False"])


@pytest.mark.parametrize("trace", [make_fx, dynamo, aot], ids=["make_fx", "dynamo", "aot"])
@pytest.mark.parametrize(
    "name", [n for n, o in ir.registry.items() if o.native.__module__.startswith("opdock.") and o.has_input_generator]
)
def test_each_op_of_the_host_is_one_node(name: str, trace: Any) -> None:
    """With one result or two, both overloads."""
    op = ir.registry[name]
    args = op.generate_inputs()
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    for public in (op.fn, *([op.fn.maybe_inplace] if op.allow_inplace else [])):  # type: ignore[attr-defined]

        def fn(*given: torch.Tensor, public: Any = public) -> Any:
            rest = iter(given)
            return public(*(next(rest) if isinstance(a, torch.Tensor) else a for a in args))

        gm = trace(fn)(*tensors) if trace is make_fx else trace(fn, *tensors)
        assert nodes(gm, public.torch_op) == 1
