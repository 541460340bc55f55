"""Time products with quantised weights on a GPU, against torch's own in the same run.

    python benchmarks/linear.py [--out benchmarks/results]

Each number: calls over rotated weights of more than 400 MB together, captured in one CUDA graph, microseconds for one
call. fp8 is compared with the faster of ``torch._scaled_mm`` with one scale for each tensor and with one for each row,
whichever of the two ours computes; 4-bit weights with ``F.linear`` in bfloat16. Rows are quantised beforehand. Values
are compared with float64 before anything is timed. Exit status 1 if a bound is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from gpu_timing import ROTATED_BYTES, graph_time
from record import Result, Row, write

from opdock.nn.kernels import triton
from opdock.nn.quantization.rounding import quantise_int4

SHAPES = ((4096, 4096), (4096, 14336))
"""(inputs, outputs)."""

TOKENS, FEW, GROUP = (1, 16, 32, 64, 256, 4096), (1, 16, 32), 128
FP8, INT4 = 1.0, 1.8
"""At least so much faster than the peer."""

Call = Callable[[], torch.Tensor]


def rotated(make: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    """Return copies of a weight, more than ROTATED_BYTES together."""
    first = make()
    return [first, *(make() for _ in range(int(ROTATED_BYTES // (first.numel() * first.itemsize)) + 1))]


def check(got: torch.Tensor, exact: torch.Tensor, what: str) -> None:
    """Raise unless a product is as near to float64 as bfloat16 allows."""
    error = ((got.double() - exact).abs().max() / exact.abs().max()).item()
    if not error < 2.0**-7:
        raise RuntimeError(f"{what}: off by {error:.1e} of the largest result")


def fp8_rows(tokens: int, inputs: int, outputs: int) -> Iterator[tuple[str, float]]:
    """Yield (name, microseconds) of the fp8 products of one size."""
    fp8 = torch.float8_e4m3fn
    weights = rotated(lambda: (torch.randn(outputs, inputs, device="cuda") * 0.5).to(fp8))
    x = torch.randn(tokens, inputs, device="cuda").to(fp8)
    one, two = torch.full((1,), 0.5, device="cuda"), torch.full((1,), 0.25, device="cuda")
    rows, columns = torch.rand(tokens, 1, device="cuda") + 0.5, torch.rand(outputs, device="cuda") + 0.5
    exact = x.double() @ weights[0].double().t()
    check(triton.scaled_linear(x, weights[0], one, two, None, torch.bfloat16), exact * 0.125, "fp8, one scale")
    check(triton.scaled_linear(x, weights[0], rows, columns, None, torch.bfloat16), exact * rows * columns, "fp8")
    wide = columns.view(1, -1)

    def torch_call(w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Call:
        return lambda: torch._scaled_mm(x, w.t(), scale_a=a, scale_b=b, out_dtype=torch.bfloat16)

    def our_call(w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Call:
        return lambda: triton.scaled_linear(x, w, a, b, None, torch.bfloat16)

    yield "torch, one scale", graph_time([torch_call(w, one.view(()), two.view(())) for w in weights])
    yield "torch, scales of rows", graph_time([torch_call(w, rows, wide) for w in weights])
    yield "ours, one scale", graph_time([our_call(w, one, two) for w in weights])
    yield "ours, scales of rows", graph_time([our_call(w, rows, columns) for w in weights])


def int4_rows(tokens: int, inputs: int, outputs: int) -> Iterator[tuple[str, float]]:
    """Yield (name, microseconds) of the products with bfloat16 and 4-bit weights of one size."""
    dense = rotated(lambda: torch.randn(outputs, inputs, device="cuda", dtype=torch.bfloat16) * 0.02)
    x = torch.randn(tokens, inputs, device="cuda", dtype=torch.bfloat16)
    yield "bf16", graph_time([lambda w=w: torch.nn.functional.linear(x, w) for w in dense])  # type: ignore[misc]
    codes, scale, _ = quantise_int4(dense[0], GROUP)
    scale = scale.bfloat16()
    del dense
    packed = rotated(lambda: triton.pack_words(codes, GROUP))
    exact = (codes.double() - 8) * scale.t().double().repeat_interleave(GROUP, 1)
    check(triton.int4_linear(x, packed[0], scale, None, None, GROUP), x.double() @ exact.t(), "int4")
    scales = [scale.clone() for _ in packed]
    yield (
        "ours, int4",
        graph_time(
            [
                lambda w=w, s=s: triton.int4_linear(x, w, s, None, None, GROUP)
                for w, s in zip(packed, scales, strict=True)
            ]  # type: ignore[misc]
        ),
    )


def judge(size: str, found: dict[str, float], *, few: bool) -> list[Row]:
    """Return the lines of the table for one size."""
    lines: list[Row] = [(f"{size}: {name}", time, "us", None, "<=") for name, time in found.items()]
    best = min(found["torch, one scale"], found["torch, scales of rows"])
    kinds = ("one scale", "scales of rows")
    ratios = [(kind, best / found[f"ours, {kind}"]) for kind in kinds]
    lines += [(f"{size}: fp8, {kind}, over torch's best", ratio, "x", FP8, ">=") for kind, ratio in ratios]
    same = found["torch, scales of rows"] / found["ours, scales of rows"]
    lines.append((f"{size}: fp8, scales of rows, over torch's of rows", same, "x", FP8, ">="))
    if few:
        lines.append((f"{size}: int4 over bf16", found["bf16"] / found["ours, int4"], "x", INT4, ">="))
    return lines


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for linear.json and linear.txt")
    given = parser.parse_args()
    torch.manual_seed(0)
    rows: list[Row] = []
    raw: dict[str, float] = {}
    for inputs, outputs in SHAPES:
        for tokens in TOKENS:
            size, few = f"{tokens} x {inputs} x {outputs}", tokens in FEW
            found = dict(fp8_rows(tokens, inputs, outputs))
            if few:
                found |= dict(int4_rows(tokens, inputs, outputs))
            rows += judge(size, found, few=few)
            raw |= {f"{size}: {name}": time for name, time in found.items()}
    conditions = (
        f"{torch.cuda.get_device_name()}; calls in one CUDA graph over rotated weights of more than "
        f"{ROTATED_BYTES / 1e6:.0f} MB; fp8 is e4m3; int4 in groups of {GROUP}; x is quantised beforehand."
    )
    result = Result("linear", conditions, ["torch", "triton", "opdock"], rows, raw)
    print(result.conditions + "\n\n" + result.table())
    if given.out is not None:
        write(result, given.out)
    return int(bool(result.missed()))


if __name__ == "__main__":
    sys.exit(main())
