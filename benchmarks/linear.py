"""Time products with quantised weights on a GPU, against torch's own in the same run.

    python benchmarks/linear.py [--compiled] [--seconds N] [--out benchmarks/results]

Each number: calls over rotated weights of more than 400 MB together, captured in one CUDA graph, microseconds for one
call. The sides take turns, and each peer is timed twice: how far it differs from itself is the noise of the run. fp8 is
compared with the faster of ``torch._scaled_mm`` with one scale for each tensor and with one for each row, whichever of
the two ours computes; 4-bit weights with ``F.linear`` in bfloat16. Rows are quantised beforehand. Values are compared
with float64 before anything is timed. Where a limit is missed, the record says by how much and why, and where ours is
torch's own product it says so. Exit status 1 for a miss.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import floors
import shortfall
import torch
from gpu_timing import ROTATED_BYTES
from record import Result, Row, write
from shortfall import Facts
from torch import Tensor
from turns import ROUNDS, in_turns
from warm import compile_first

from opdock.nn.kernels import triton
from opdock.nn.kernels.triton.linear_tuning import Tiles, int4_tiles, scaled_tiles
from opdock.nn.quantization.rounding import quantise_int4

SHAPES = ((4096, 4096), (4096, 14336))
"""(inputs, outputs)."""

TOKENS, FEW, GROUP = (1, 16, 32, 64, 256, 4096), (1, 16, 32), 128
FP8, INT4 = 1.0, 1.8
"""At least so much faster than the peer."""

AGAIN = ", again"
"""Behind the name of a peer: the same calls as a side of their own."""

Call = Callable[[], Tensor]
Sides = dict[str, list[Call]]
Found = dict[str, float]


@dataclass
class Weights:
    """One weight in each of its forms, in rotated copies.

    Attributes:
        fp8: (outputs, inputs) each.
        dense: bfloat16.
        packed: 4-bit codes and the scales of groups.
        exact: what the codes and scales stand for, float64.
    """

    fp8: list[Tensor]
    dense: list[Tensor]
    packed: list[tuple[Tensor, Tensor]]
    exact: Tensor


def copies(first: Tensor, *, once: bool) -> list[Tensor]:
    """Return a tensor and copies of it, more than ROTATED_BYTES together, or the tensor alone."""
    return [first, *(first.clone() for _ in range(0 if once else int(ROTATED_BYTES // first.nbytes) + 1))]


def make(inputs: int, outputs: int, *, once: bool = False) -> Weights:
    """Return the weights of one size; ``once``: no copies."""
    dense = torch.randn(outputs, inputs, device="cuda", dtype=torch.bfloat16) * 0.02
    codes, scale, _ = quantise_int4(dense, GROUP)
    scale = scale.bfloat16()
    packed = copies(triton.pack_words(codes, GROUP), once=once)
    exact = (codes.double() - 8) * scale.t().double().repeat_interleave(GROUP, 1)
    fp8 = (torch.randn(outputs, inputs, device="cuda") * 0.5).to(torch.float8_e4m3fn)
    return Weights(copies(fp8, once=once), copies(dense, once=once), [(p, scale.clone()) for p in packed], exact)


def check(got: Tensor, exact: Tensor, what: str) -> None:
    """Raise unless a product is as near to float64 as bfloat16 allows."""
    error = ((got.double() - exact).abs().max() / exact.abs().max()).item()
    if not error < 2.0**-7:
        raise RuntimeError(f"{what}: off by {error:.1e} of the largest result")


class Fp8:
    """The fp8 products of one size: what goes in, and a call for each weight."""

    def __init__(self, tokens: int, weights: list[Tensor]) -> None:
        """Make rows and scales, and compare both ways with float64."""
        outputs, inputs = weights[0].shape
        self.weights = weights
        self.x = torch.randn(tokens, inputs, device="cuda").to(torch.float8_e4m3fn)
        self.one = torch.full((1,), 0.5, device="cuda"), torch.full((1,), 0.25, device="cuda")
        self.rows = torch.rand(tokens, 1, device="cuda") + 0.5, torch.rand(outputs, device="cuda") + 0.5

    def check(self) -> None:
        """Compare ours with float64."""
        exact = self.x.double() @ self.weights[0].double().t()
        a, b = self.rows
        check(self.ours(self.weights[0], *self.one)(), exact * 0.125, "fp8, one scale")
        check(self.ours(self.weights[0], a, b)(), exact * a * b, "fp8")

    def theirs(self, w: Tensor, a: Tensor, b: Tensor) -> Call:
        """Return torch's product."""
        return lambda: torch._scaled_mm(self.x, w.t(), scale_a=a, scale_b=b, out_dtype=torch.bfloat16)

    def ours(self, w: Tensor, a: Tensor, b: Tensor) -> Call:
        """Return our product."""
        return lambda: triton.scaled_linear(self.x, w, a, b, None, torch.bfloat16)

    def sides(self) -> Sides:
        """Return the calls of each side, one for each weight."""
        one, two, (rows, columns) = self.one[0].view(()), self.one[1].view(()), self.rows
        single = [self.theirs(w, one, two) for w in self.weights]
        many = [self.theirs(w, rows, columns.view(1, -1)) for w in self.weights]
        return {
            "torch, one scale": single,
            "ours, one scale": [self.ours(w, *self.one) for w in self.weights],
            "torch, scales of rows": many,
            "ours, scales of rows": [self.ours(w, rows, columns) for w in self.weights],
            "torch, one scale" + AGAIN: single,
            "torch, scales of rows" + AGAIN: many,
        }


def our_int4(x: Tensor, packed: tuple[Tensor, Tensor]) -> Call:
    """Return our product with 4-bit weights."""
    return lambda: triton.int4_linear(x, *packed, None, None, GROUP)


def int4_sides(x: Tensor, weights: Weights) -> Sides:
    """Return the calls with bfloat16 and with 4-bit weights of one size, after comparing ours with float64."""
    check(our_int4(x, weights.packed[0])(), x.double() @ weights.exact.t(), "int4")
    dense: list[Call] = [functools.partial(torch.nn.functional.linear, x, w) for w in weights.dense]
    return {"bf16": dense, "ours, int4": [our_int4(x, packed) for packed in weights.packed], "bf16" + AGAIN: dense}


def judge(size: str, found: Found, *, few: bool) -> list[Row]:
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


def early() -> bool:
    """Return whether any of our products here is started before the kernel ahead has ended."""
    sizes = [(tokens, outputs, inputs) for inputs, outputs in SHAPES for tokens in TOKENS]
    tiles = [int4_tiles(*size, GROUP) for size in sizes if size[0] in FEW]
    tiles += [found for size in sizes if (found := scaled_tiles(*size, one_scale=False)) is not None]
    return any(one.dependent for one in tiles)


def programs_of(tiles: Tiles | None, tokens: int, outputs: int) -> int | None:
    """Return how many programs a product starts; None for torch's."""
    if tiles is None:
        return None
    return -(-outputs // tiles.block_n) * -(-tokens // tiles.block_m) * tiles.split


def loads_of(tiles: Tiles | None, x: Tensor, weight: Tensor) -> float | None:
    """Return the bytes that all programs of a product load together; None for torch's.

    Args:
        tiles: of the product.
        x: (rows, inputs).
        weight: (outputs, ...), as it is stored.
    """
    if tiles is None:
        return None
    return -(-weight.shape[0] // tiles.block_n) * x.nbytes + -(-x.shape[0] // tiles.block_m) * weight.nbytes


def noise_of(found: Found, peer: str) -> float:
    """Return by which part of it a peer differs from itself."""
    return abs(found[peer + AGAIN] / found[peer] - 1.0)


def facts_of(what: str, found: Found, x: Tensor, eight: Fp8, weights: Weights) -> Facts:
    """Return what the run says of a row that misses its limit; the floors are measured.

    Args:
        what: the row's words.
        found: the times of this size.
        x: rows in bfloat16.
        eight: the fp8 products.
        weights: of this size.
    """
    tokens, (outputs, inputs) = x.shape[0], weights.dense[0].shape
    variants, same = Found(), None
    if "int4" in what:
        tiles: Tiles | None = int4_tiles(tokens, outputs, inputs, GROUP)
        peer, ours, need, dtype = "bf16", "ours, int4", INT4, torch.bfloat16
        read, loads = floors.read_time(weights.packed), loads_of(tiles, x, weights.packed[0][0])
        if tokens > 1:
            half = [our_int4(x[: tokens // 2], packed) for packed in weights.packed]
            words = "with half the rows, so half the multiplications and half the loads of x,"
            variants[words] = in_turns({"half": half})["half"]
    else:
        single = "one scale," in what
        tiles = scaled_tiles(tokens, outputs, inputs, one_scale=single)
        kind, peer = "one scale" if single else "scales of rows", "torch, scales of rows"
        if "torch's of rows" not in what and found["torch, one scale"] < found[peer]:
            peer = "torch, one scale"
        ours, need, dtype = f"ours, {kind}", FP8, torch.float8_e4m3fn
        read, loads = floors.read_time([(w, eight.x) for w in weights.fp8]), loads_of(tiles, eight.x, weights.fp8[0])
        if tiles is None:
            same = found[f"torch, {kind}"]
        elif tiles == scaled_tiles(tokens, outputs, inputs, one_scale=True) and not single:
            variants["with one scale for all rows"] = found["ours, one scale"]
    return Facts(
        found[ours],
        found[peer],
        need,
        floors.launch_time(),
        read=read,
        product=2e-6 * tokens * inputs * outputs / floors.product_rate(dtype),
        programs=programs_of(tiles, tokens, outputs),
        units=floors.units(),
        variants=variants,
        loads=None if loads is None else loads / floors.cache_rate(),
        same=same,
        noise=noise_of(found, peer),
    )


def of_torch(sizes: list[tuple[int, int, int]]) -> str:
    """Return for which of the sizes (tokens, inputs, outputs) ours is torch's own product, in words."""
    lines = []
    for kind, one_scale in (("one scale", True), ("scales of rows", False)):
        own = [s for s in sizes if scaled_tiles(s[0], s[2], s[1], one_scale=one_scale) is None]
        if own:
            names = ", ".join(" x ".join(map(str, size)) for size in own)
            lines.append(f"Ours with {kind} is torch's own product, timed as one side more, at {names}.")
    return "\n".join(lines)


def warm(job: tuple[int, int, int]) -> str:
    """Compile what one size needs; returns "" or what went wrong."""
    tokens, inputs, outputs = job
    try:
        x, weights = torch.randn(tokens, inputs, device="cuda", dtype=torch.bfloat16), make(inputs, outputs, once=True)
        if tokens in FEW:
            our_int4(x, weights.packed[0])()
        Fp8(tokens, weights.fp8).check()
        torch.cuda.synchronize()
    except Exception as err:  # noqa: BLE001 - told, and met again
        return f"{job}: {type(err).__name__}: {str(err)[:150]}"
    return ""


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for linear.json and linear.txt")
    parser.add_argument("--compiled", action="store_true", help="the kernels are compiled already")
    parser.add_argument("--seconds", type=float, default=1e9, help="after so many no further size is begun")
    given = parser.parse_args()
    began = time.perf_counter()
    if not given.compiled:
        compile_first(warm, [(tokens, *shape) for shape in SHAPES for tokens in TOKENS if tokens < 4096])
    torch.manual_seed(0)
    rows, raw, words, notes = list[Row](), Found(), dict[str, str](), list[str]()
    done = list[tuple[int, int, int]]()
    with floors.quiet_collector(), torch.no_grad():
        for inputs, outputs in SHAPES:
            weights = make(inputs, outputs)
            for tokens in TOKENS:
                size, few = f"{tokens} x {inputs} x {outputs}", tokens in FEW
                if time.perf_counter() - began > given.seconds:
                    notes.append(f"Left out for lack of time: {size}.")
                    continue
                eight = Fp8(tokens, weights.fp8)
                eight.check()
                found = in_turns(eight.sides())
                x = torch.randn(tokens, inputs, device="cuda", dtype=torch.bfloat16)
                if few:
                    found |= in_turns(int4_sides(x, weights))
                made = judge(size, found, few=few)
                missed = [row for row in made if row[3] is not None and row[1] < row[3]]
                for row in missed:
                    words[row[0]], times = floors.explain(functools.partial(facts_of, row[0], found, x, eight, weights))
                    raw |= {f"{row[0]}, {name}": value for name, value in times.items()}
                rows += made
                raw |= {f"{size}: {name}": value for name, value in found.items()}
                done.append((tokens, inputs, outputs))
    notes += [line for line in (of_torch(done),) if line]
    notes.append(f"Compiled and measured in {time.perf_counter() - began:.0f} s.")
    conditions = (
        f"{torch.cuda.get_device_name()}; calls in one CUDA graph over rotated weights of more than "
        f"{ROTATED_BYTES / 1e6:.0f} MB; the sides take turns, the median of {ROUNDS} turns of each, and each peer is a "
        f"side twice; fp8 is e4m3; int4 in groups of {GROUP}; x is quantised beforehand."
        + (" Ours may begin before the kernel ahead of it has ended, and then waits for it." if early() else "")
    )
    result = Result("linear", conditions, ["torch", "triton", "opdock"], rows, raw)
    print(result.conditions + "\n\n" + result.table() + "\n\n" + shortfall.told(words, tuple(notes)))
    if given.out is not None:
        write(result, given.out)
        shortfall.append(given.out, result.name, words, tuple(notes))
    return int(bool(result.missed()))


if __name__ == "__main__":
    sys.exit(main())
