"""The norms of one decode step, eager and compiled: kernels launched, time on the host, and the cost of one call."""

from __future__ import annotations

import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from gpu_timing import graph_time, host_time
from torch.profiler import ProfilerActivity, profile

from opdock import ir

if TYPE_CHECKING:
    from record import Row

LAYERS, NORMS, BATCH, HIDDEN, EPSILON = 61, 122, 32, 7168, 1e-6
PROVIDER = "bench_cuda"


def decode_step(modules: dict[str, object]) -> tuple[list[Row], dict[str, float]]:
    """Return the rows and raw figures of 61 layers of two fused_add_rms_norm, and of one call of rms_norm."""
    made: dict[str, Any] = {"dtype": torch.bfloat16, "device": "cuda"}
    x, residual = (torch.randn(BATCH, HIDDEN, **made) for _ in range(2))
    weight = torch.ones(HIDDEN, **made)
    args = x, residual, weight, EPSILON
    op, raw, c = ir.ops.fused_add_rms_norm, torch.ops.opdock_cuda, torch.ops._C
    inplace, native = op.maybe_inplace, op.op.native
    raw_add, raw_norm = raw.fused_add_rms_norm_, raw.rms_norm
    calls: dict[str, Callable[..., Any]] = {"native": native, "ours, raw torch op": raw_add}
    if "vllm_c" in modules:
        calls["vllm_c"] = c.fused_add_rms_norm
    calls["ours, IR op"] = inplace
    calls["ours, layer"] = calls["ours, layer compiled"] = layer(weight)
    rows: list[Row] = []
    figures: dict[str, float] = {}
    with chosen(ir.ops.fused_add_rms_norm, args, _add), chosen(ir.ops.rms_norm, (x, weight, EPSILON), _norm):
        for name, call in calls.items():
            given = args[:2] if name.startswith("ours, layer") else args
            step = compiled(call, *given) if name.endswith("compiled") else eager(call, *given)
            label = f"decode step of {NORMS} norms, {name}"
            seen = {"kernels": float(launched(step)), "host": host_ms(step), "graph": graph_time([step])}
            figures |= {f"{label}: {key}": value for key, value in seen.items()}
            limit = None if name == "native" or name.endswith("compiled") else float(NORMS)
            rows += [
                (f"{label}: kernels launched", seen["kernels"], "", limit, "<="),
                (f"{label}: time on the host", seen["host"], "ms", None, "<="),
                (f"{label}: in a CUDA graph", seen["graph"], "us", None, "<="),
            ]
        norm = ir.ops.rms_norm
        rows += one_call("rms_norm", raw_norm, norm, norm.dispatch(x, weight, EPSILON), (x, weight, EPSILON))
        rows += one_call("fused_add_rms_norm", raw_add, inplace, op.dispatch(*args), args)
        for name, its, given in (("rms_norm", norm, (x, weight, EPSILON)), ("fused_add_rms_norm", op, args)):
            if "triton" in its.impls:
                (took,) = least_host_times(partial(its.impls["triton"].impl_fn, *given))
                rows.append((f"one call of {name}: the Triton provider, host", took, "us", None, "<="))
        if "vllm_c" in modules:
            out = torch.empty_like(x)
            (took,) = least_host_times(lambda: c.rms_norm(out, x, weight, EPSILON))
            rows.append(("one call of rms_norm: vllm_c, output given, host", took, "us", None, "<="))
    return rows, figures


def eager(call: Callable[..., Any], *given: Any) -> Callable[[], None]:
    """Return a step that calls ``call`` for each norm."""

    def step() -> None:
        for _ in range(NORMS):
            call(*given)

    return step


def compiled(call: Callable[..., Any], x: torch.Tensor, residual: torch.Tensor) -> Callable[[], object]:
    """Return a step whose norms, each on the results of the one before it, are one compiled graph."""

    def norms(x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for _ in range(NORMS):
            x, residual = call(x, residual)
        return x, residual

    made = torch.compile(norms, backend="opdock", fullgraph=True, dynamic=False)
    return lambda: made(x, residual)


def one_call(
    name: str, raw: Callable[..., Any], through: Callable[..., Any], impl: Any, args: tuple[Any, ...]
) -> list[Row]:
    """Return what one call costs on the host: the raw torch op, the provider over it, its predicate, the IR op."""
    takes = impl.predicate or (lambda *_: True)
    parts = least_host_times(
        lambda: raw(*args), lambda: impl.impl_fn(*args), lambda: takes(*args), lambda: through(*args)
    )
    labels = (("raw torch op", None), ("the provider", None), ("its predicate", 0.5), ("IR op", None))
    rows: list[Row] = [
        (f"one call of {name}: {what}, host", took, "us", limit, "<=")
        for (what, limit), took in zip(labels, parts, strict=True)
    ]
    return [*rows, (f"one call of {name}: IR op less raw", parts[3] - parts[0], "us", 1.0, "<=")]


def layer(weight: torch.Tensor) -> Callable[..., Any]:
    """Return the layer of opdock that adds and normalises, with this weight."""
    from opdock import set_current_config
    from opdock.nn.layers import RMSNorm

    with set_current_config(), torch.device("cuda"):
        made = RMSNorm(HIDDEN, eps=EPSILON, dtype=torch.bfloat16)
    made.weight.copy_(weight)
    return made


def least_host_times(*calls: Callable[[], object]) -> list[float]:
    """Return the microseconds that the host needs for each call, the least of five turns through all of them."""
    with without_collector():
        turns = [[host_time(call) for call in calls] for _ in range(5)]
    return [min(times) for times in zip(*turns, strict=True)]


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Keep Python's garbage collector, which walks over all that torch has imported, out of what is timed."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def chosen(op: Any, args: tuple[Any, ...], register: Callable[[Any], None]) -> Any:
    """Return a context in which other than native runs: as chosen, or a provider made here over the raw op."""
    if op.dispatch(*args).is_native:
        if PROVIDER not in op.impls:
            register(op)
        return op.set_priority([PROVIDER, "native"])
    return contextlib.nullcontext()  # a scope would cost something in each call


def _takes_add(
    x: torch.Tensor,
    x_residual: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> bool:
    return x.device.type == "cuda" and x.dtype is torch.bfloat16 and x.is_contiguous() and x_residual.is_contiguous()


def _takes_norm(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None) -> bool:
    return x.device.type == "cuda" and x.dtype is torch.bfloat16 and x.is_contiguous()


def _add(op: Any) -> None:
    raw = torch.ops.opdock_cuda.fused_add_rms_norm_.default

    @op.register_impl(PROVIDER, inplace=True, supports_args=_takes_add)
    def run(
        x: torch.Tensor,
        x_residual: torch.Tensor,
        weight: torch.Tensor | None,
        epsilon: float,
        variance_size: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        raw(x, x_residual, weight, epsilon)
        return x, x_residual


def _norm(op: Any) -> None:
    raw = torch.ops.opdock_cuda.rms_norm.default

    @op.register_impl(PROVIDER, supports_args=_takes_norm)
    def run(
        x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> torch.Tensor:
        made: torch.Tensor = raw(x, weight, epsilon)
        return made


def launched(run: Callable[[], Any]) -> int:
    """Return how many kernels a call launches."""
    run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU], acc_events=True) as seen:
        run()
        torch.cuda.synchronize()
    return sum(e.device_type == torch.autograd.DeviceType.CUDA for e in seen.events())


def host_ms(run: Callable[[], Any]) -> float:
    """Return the median milliseconds to launch a step, without waiting for it."""
    times = []
    with without_collector():
        for i in range(60):
            torch.cuda.synchronize()
            start = time.perf_counter()
            run()
            if i >= 30:
                times.append((time.perf_counter() - start) * 1e3)
    torch.cuda.synchronize()
    return statistics.median(times)
