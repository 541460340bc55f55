"""Time the norms of one decode step on a GPU: 61 layers of two, eager and compiled, by provider.

    python benchmarks/decode_norms.py [--tokens 32] [--hidden 7168] [--out benchmarks/results]

A step is 122 times fused_add_rms_norm in bfloat16, each followed by a matrix product that stands for the layer's
projections and keeps the norms apart. Kernels: what the profiler saw launched for the step, the products' left out.
Host: time to launch the step, without waiting for it. Device: replay of the step as a CUDA graph, less the replay of
the products alone. Providers: the native definition; `bench_triton`, one Triton kernel, in place, inlined into compiled
code; `bench_opaque`, the same kernel as an opaque torch op. Told for each: the largest error against the step in
float64, as a multiple of the eager native one (at most 1.5), and the clones that are left.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from record import Result, Row, write
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from opdock import ir
from opdock.compile import observing

NORMS = 122
PRODUCTS = ("gemm", "nvjet", "cutlass", "cublas", "splitk", "xmma")
CONDITIONS = "bfloat16; medians of 30 steps after 5."

norm = ir.ops.fused_add_rms_norm


@triton.jit
def _kernel(x, residual, weight, hidden, epsilon, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, N803
    row, columns = tl.program_id(0).to(tl.int64) * hidden, tl.arange(0, BLOCK)
    inside = columns < hidden
    total = tl.load(x + row + columns, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(residual + row + columns, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(total * total) / hidden + epsilon)
    y = (total * scale).to(tl.bfloat16) * tl.load(weight + columns, mask=inside)
    tl.store(residual + row + columns, total.to(tl.bfloat16), mask=inside)
    tl.store(x + row + columns, y.to(tl.bfloat16), mask=inside)


def _takes(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> Any:
    if weight is None or variance_size is not None or x.dtype != torch.bfloat16 or x.device.type != "cuda":
        return "bfloat16 on a GPU, with a weight, over whole rows"
    return (x.is_contiguous() and x_residual.is_contiguous()) or "not dense"


@norm.register_impl("bench_triton", inplace=True, supports_args=_takes)
def _triton(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    rows, hidden = x.numel() // x.shape[-1], x.shape[-1]
    block = triton.next_power_of_2(hidden)
    torch.library.wrap_triton(_kernel)[(rows,)](x, x_residual, weight, hidden, epsilon, BLOCK=block, num_warps=8)
    return x, x_residual


@torch.library.custom_op("opdock_bench::add_rms_norm_", mutates_args=("x", "residual"))
def _opaque_op(x: Tensor, residual: Tensor, weight: Tensor, epsilon: float) -> None:
    _kernel[(x.shape[0],)](
        x, residual, weight, x.shape[-1], epsilon, BLOCK=triton.next_power_of_2(x.shape[-1]), num_warps=8
    )


@_opaque_op.register_fake
def _(x: Tensor, residual: Tensor, weight: Tensor, epsilon: float) -> None:
    return None


@norm.register_impl("bench_opaque", inplace=True, supports_args=_takes)
def _opaque(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    torch.ops.opdock_bench.add_rms_norm_(x, x_residual, weight, epsilon)
    return x, x_residual


def step(x: Tensor, residual: Tensor, weight: Tensor, product: Tensor) -> tuple[Tensor, Tensor]:
    """Run the norms and products of one decode step; x and residual are kept."""
    x, residual = norm(x, residual, weight, 1e-6)
    x = x @ product
    for _ in range(NORMS - 1):
        x, residual = norm.maybe_inplace(x, residual, weight, 1e-6)
        x = x @ product
    return x, residual


def products(x: Tensor, residual: Tensor, weight: Tensor, product: Tensor) -> tuple[Tensor, Tensor]:
    """Run the products alone."""
    for _ in range(NORMS):
        x = x @ product
    return x, residual


def kernels_of(run: Callable[[], Any]) -> int:
    """Return how many kernels a call launches, the products' left out."""
    run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        run()
        torch.cuda.synchronize()
    on_device = [e for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return sum(not any(word in e.name.lower() for word in PRODUCTS) for e in on_device)


def host_seconds(run: Callable[[], Any]) -> float:
    """Return the median time to launch a step."""
    times = []
    for i in range(35):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        if i >= 5:
            times.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    return statistics.median(times)


def device_seconds(run: Callable[[], Any]) -> float:
    """Return the median time of a step replayed as a CUDA graph."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    times = []
    for i in range(35):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        if i >= 5:
            times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)


def measure(name: str, args: tuple[Tensor, ...], want: Tensor, bare: float, *, compiled: bool) -> dict[str, float]:
    """Return what is told of one provider, eager or compiled."""
    norm.set_default([name, "native"] if name != "native" else ["native"])
    torch._dynamo.reset()
    fn: Callable[..., Any] = torch.compile(step, backend="opdock", fullgraph=True) if compiled else step
    with observing() as reports:
        start = time.perf_counter()
        got = fn(*args)[0]
        torch.cuda.synchronize()
        first = time.perf_counter() - start
    kept = [a.clone() for a in args]
    run: Callable[[], Any] = lambda: fn(*args)  # noqa: E731
    found = {
        "kernels": float(kernels_of(run)),
        "host_ms": host_seconds(run) * 1e3,
        "device_ms": (device_seconds(run) - bare) * 1e3,
        "first_call_s": first,
        "error": float((got.double() - want).abs().max()),
    }
    if any(not torch.equal(a, b) for a, b in zip(args, kept, strict=True)):
        raise SystemExit(f"{name} wrote an input that it was not given")
    if compiled:
        (report,) = reports
        found |= {"clones_left": float(report.clones_left), "clones_removed": float(report.clones_removed)}
        if {p for nodes in report.selected_impls.values() for p in nodes.values()} != {name}:
            raise SystemExit(f"{name} was not chosen: {report.selected_impls}")
    return found


def main() -> int:
    """Run all variants."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--out", type=Path, help="folder for decode_norms.json and decode_norms.txt")
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    made = {"dtype": torch.bfloat16, "device": "cuda"}
    product = torch.eye(given.hidden, **made)
    weight = torch.rand(given.hidden, **made) + 0.5
    x, residual = (torch.randn(given.tokens, given.hidden, **made) for _ in range(2))
    args = x, residual, weight, product
    norm.set_default(["native"])
    want = step(*(a.double() for a in args))[0]
    bare = device_seconds(lambda: products(*args))
    print(f"the {NORMS} products alone: {bare * 1e3:.3f} ms on the device")
    rows: list[Row] = []
    raw: dict[str, float] = {"products alone, device_ms": bare * 1e3}
    for name in ("native", "bench_triton", "bench_opaque"):
        for compiled in (False, True):
            label = f"{name}, {'compiled' if compiled else 'eager'}"
            found = measure(name, args, want, bare, compiled=compiled)
            found["ratio"] = found["error"] / raw.get("native, eager: error", found["error"])
            raw |= {f"{label}: {k}": v for k, v in found.items()}
            print(label, found, flush=True)
            # an in-place provider copies the caller's two tensors, which are kept
            limit = NORMS + (0.0 if name == "native" else 2.0)
            rows += [
                (f"{label}: kernels", found["kernels"], "", limit if label != "native, eager" else None, "<="),
                (f"{label}: host, products included", found["host_ms"], "ms", None, "<="),
                (f"{label}: device, products left out", found["device_ms"], "ms", None, "<="),
                (f"{label}: error over eager native's", found["ratio"], "x", 1.5, "<="),
            ]
            if compiled:
                rows.append((f"{label}: clones left", found["clones_left"], "", limit - NORMS, "<="))
    result = Result(
        "decode_norms", f"{torch.cuda.get_device_name()}. {CONDITIONS}", ("opdock", "torch", "triton"), rows, raw
    )
    print(result.table())
    if given.out is not None:
        write(result, given.out)
    return 1 if result.missed() else 0


if __name__ == "__main__":
    sys.exit(main())
