"""The norms of one decode step, eager: kernels launched, time on the host, and the cost of one call."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
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
    rows: list[Row] = []
    figures: dict[str, float] = {}
    with chosen(ir.ops.fused_add_rms_norm, args, _add), chosen(ir.ops.rms_norm, (x, weight, EPSILON), _norm):
        for name, call in calls.items():

            def step(call: Callable[..., Any] = call) -> None:
                for _ in range(NORMS):
                    call(*args)

            label = f"decode step of {NORMS} norms, {name}"
            seen = {"kernels": float(launched(step)), "host": host_ms(step), "graph": graph_time([step])}
            figures |= {f"{label}: {key}": value for key, value in seen.items()}
            limit = None if name == "native" else float(NORMS)
            rows += [
                (f"{label}: kernels launched", seen["kernels"], "", limit, "<="),
                (f"{label}: time on the host", seen["host"], "ms", None, "<="),
                (f"{label}: in a CUDA graph", seen["graph"], "us", None, "<="),
            ]
        norm = ir.ops.rms_norm
        pairs = {
            "rms_norm": (lambda: raw_norm(x, weight, EPSILON), lambda: norm(x, weight, EPSILON)),
            "fused_add_rms_norm": (lambda: raw_add(*args), lambda: inplace(*args)),
        }
        for name, (direct, through) in pairs.items():
            least = [min(host_time(f) for _ in range(3)) for f in (direct, through)]
            figures |= {f"one call of {name}, {k}": v for k, v in zip(("raw", "IR"), least, strict=True)}
            rows += [
                (f"one call of {name}: raw torch op, host", least[0], "us", None, "<="),
                (f"one call of {name}: IR op, host", least[1], "us", None, "<="),
                (f"one call of {name}: IR op less raw", least[1] - least[0], "us", 1.0, "<="),
            ]
        if "vllm_c" in modules:
            out = torch.empty_like(x)
            took = host_time(lambda: c.rms_norm(out, x, weight, EPSILON))
            rows.append(("one call of rms_norm: vllm_c, output given, host", took, "us", None, "<="))
    return rows, figures


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
    for i in range(60):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        if i >= 30:
            times.append((time.perf_counter() - start) * 1e3)
    torch.cuda.synchronize()
    return statistics.median(times)
