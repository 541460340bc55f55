"""Time the experts of a step on a GPU: our Triton kernels, torch's grouped product, and a loop over the experts.

    python benchmarks/moe.py [--shape N ...] [--out FOLDER]

For each shape and number of tokens, with random routing: microseconds of the whole step (from the chosen experts to
the weighted sum) of each in bfloat16, of the second product alone, and of the step with fp8 weights; ratios of the
others to ours. Ours is compared with float64 on some tokens first. Exit status 1 for a wrong result; a ratio below 1
is printed as missed.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from gpu_timing import graph_time
from record import Result, Row, write
from torch import Tensor

SHAPES = ((128, 2048, 768), (64, 2048, 1408), (128, 4096, 1408), (64, 4096, 2048))
TOKENS, TOP_K = (1, 8, 64, 512, 4096), 8
FASTEST, CHECKED, BOUND, BOUND_FP8 = 1.0, 16, 0.02, 0.1
CONDITIONS = (
    "bfloat16, top 8, random routing, 16 (up to 8 tokens) or 4 routings rotated in one CUDA graph, median of 30 "
    "replays; the weights of the experts that are hit exceed the L2 cache. grouped_mm: sort, gather, "
    "torch._grouped_mm, our gated activation, torch._grouped_mm, scatter and sum, in the same graph, as "
    "transformers' grouped_mm experts do. loop: for each expert that is hit an index, two products and an index_add, "
    "eager, median of 5 after 2. second: the product of the intermediate rows, ours with their weighting and placing, "
    "torch's without. fp8: float8_e4m3fn weights with a scale for each row, rows quantised with one each; scaled: the "
    "pipeline of grouped_mm with our quantisation and torch._scaled_grouped_mm."
)


@dataclass
class Case:
    """Weights, and the inputs of several routings."""

    w13: Tensor
    w2: Tensor
    fp8: tuple[Tensor, Tensor, Tensor, Tensor]
    calls: list[tuple[Tensor, Tensor, Tensor]]


def make(experts: int, hidden: int, inner: int, tokens: int, before: Case | None) -> Case:
    """Return a case; the weights of the one before are used again where given."""
    if before is None:
        w13 = torch.randn(experts, 2 * inner, hidden, device="cuda", dtype=torch.bfloat16).mul_(hidden**-0.5)
        w2 = torch.randn(experts, hidden, inner, device="cuda", dtype=torch.bfloat16).mul_(inner**-0.5)
        before = Case(w13, w2, (*quantised(w13), *quantised(w2)), [])
    calls = []
    for _ in range(16 if tokens <= 8 else 4):
        x = torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16)
        scores = torch.randn(tokens, experts, device="cuda").softmax(-1)
        chosen, ids = scores.topk(TOP_K, dim=-1)
        calls.append((x, chosen / chosen.sum(-1, keepdim=True), ids.int()))
    return Case(before.w13, before.w2, before.fp8, calls)


def quantised(w: Tensor) -> tuple[Tensor, Tensor]:
    """Return weights as 8-bit floats, and a scale for each row."""
    scales = w.abs().amax(-1).float() / 448.0
    stored = torch.empty(w.shape, device=w.device, dtype=torch.float8_e4m3fn)
    for one, q, scale in zip(w, stored, scales, strict=True):
        q.copy_((one.float() / scale[:, None]).to(torch.float8_e4m3fn))
    return stored, scales


def sorted_places(ids: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """Return the places by expert, and the end of each expert's, without a word to the host."""
    flat = ids.view(-1)
    ordered, order = flat.sort(stable=True)
    return order, torch.searchsorted(ordered, torch.arange(experts, device=ids.device), right=True).int()


def grouped(case: Case, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    """Compute a step with torch's grouped product."""
    from opdock.nn.kernels.triton import silu_and_mul

    order, ends = sorted_places(ids, case.w13.shape[0])
    between = silu_and_mul(torch._grouped_mm(x[order // TOP_K], case.w13.transpose(1, 2), offs=ends))
    return summed(torch._grouped_mm(between, case.w2.transpose(1, 2), offs=ends), weights, order)


def scaled(case: Case, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    """Compute a step with torch's grouped product of 8-bit floats."""
    from opdock.nn.kernels.triton import dynamic_per_token_scaled_fp8_quant, silu_and_mul

    w13, s13, w2, s2 = case.fp8
    order, ends = sorted_places(ids, w13.shape[0])
    rows = x[order // TOP_K]
    for w, scale in ((w13, s13), (w2, s2)):
        q, row_scales = dynamic_per_token_scaled_fp8_quant(rows)
        made = torch._scaled_grouped_mm(
            q, w.transpose(1, 2), row_scales.view(-1), scale, offs=ends, out_dtype=torch.bfloat16, use_fast_accum=True
        )
        rows = silu_and_mul(made) if w is w13 else made
    return summed(rows, weights, order)


def summed(made: Tensor, weights: Tensor, order: Tensor) -> Tensor:
    """Weight results, put them in their places and add those of a token."""
    parts = torch.empty_like(made)
    parts[order] = made * weights.view(-1)[order].to(made.dtype)[:, None]
    return parts.view(-1, TOP_K, made.shape[1]).sum(1)


def loop(case: Case, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    """Compute a step expert by expert."""
    out = torch.zeros_like(x)
    inner = case.w2.shape[2]
    for expert in ids.unique().tolist():
        token, slot = torch.where(ids == expert)
        made = F.linear(x[token], case.w13[expert])
        made = F.linear(F.silu(made[:, :inner]) * made[:, inner:], case.w2[expert])
        out.index_add_(0, token, made * weights[token, slot, None].to(x.dtype))
    return out


def error(case: Case, call: Callable[[Tensor, Tensor, Tensor], Tensor]) -> float:
    """Return the largest difference to float64 over some tokens, as a part of the largest value."""
    x, weights, ids = case.calls[0]
    got = call(x, weights, ids)[:CHECKED].double()
    want = torch.zeros_like(got)
    inner = case.w2.shape[2]
    for token in range(got.shape[0]):
        for slot, expert in enumerate(ids[token].tolist()):
            made = case.w13[expert].double() @ x[token].double()
            made = case.w2[expert].double() @ (F.silu(made[:inner]) * made[inner:])
            want[token] += made * weights[token, slot].double()
    return float((got - want).abs().max() / want.abs().max())


def eager_time(call: Callable[[], object]) -> float:
    """Return the microseconds of an eager call, host included: the median of five after two."""
    times = []
    for _ in range(7):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return sorted(times[2:])[2]


def measure(case: Case) -> dict[str, float]:
    """Return the microseconds of each way to compute the case."""
    from opdock.nn.kernels.triton import moe

    def ours(x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        return moe.fused_experts(x, case.w13, case.w2, weights, ids)

    found = {"error": error(case, ours), "peer error": error(case, lambda *c: grouped(case, *c))}
    found["triton"] = graph_time([lambda c=c: ours(*c) for c in case.calls])
    found["grouped_mm"] = graph_time([lambda c=c: grouped(case, *c) for c in case.calls])
    w13, s13, w2, s2 = case.fp8

    def ours8(x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        return moe.fused_experts(x, w13, w2, weights, ids, w13_scale=s13, w2_scale=s2)

    found["fp8 error"] = error(case, ours8)
    found["triton fp8"] = graph_time([lambda c=c: ours8(*c) for c in case.calls])
    try:
        found["scaled error"] = error(case, lambda *c: scaled(case, *c))
        found["scaled"] = graph_time([lambda c=c: scaled(case, *c) for c in case.calls])
    except RuntimeError as err:  # not every torch has it for this GPU
        print("scaled:", str(err).splitlines()[0][:150])
    found["loop"] = eager_time(lambda: loop(case, *case.calls[0]))
    experts, places = case.w13.shape[0], case.calls[0][2].numel()
    _, second = moe.choose_tiles(0, case.w13, case.w2, places)
    ours_calls, peer_calls = [], []
    for x, weights, ids in case.calls:
        between = torch.randn(places, case.w2.shape[2], device="cuda", dtype=torch.bfloat16)
        plan = moe.make_plan(ids, experts, second.rows)
        parts = torch.empty(places, x.shape[1], device="cuda", dtype=torch.bfloat16)
        _, ends = sorted_places(ids, experts)
        ours_calls.append(
            lambda a=between, o=parts, p=plan, w=weights: moe.product(a, case.w2, o, p, second, TOP_K, weights=w)
        )
        peer_calls.append(lambda a=between, e=ends: torch._grouped_mm(a, case.w2.transpose(1, 2), offs=e))
    found["triton second"], found["grouped_mm second"] = graph_time(ours_calls), graph_time(peer_calls)
    return found


def main() -> int:
    """Run the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", action="append", type=int, metavar="N", help="only this one, from 0")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    chosen = parser.parse_args()
    rows: list[Row] = []
    raw: dict[str, float] = {}
    wrong = []
    print(f"{'experts x hidden x inner':>26} {'tokens':>6} {'triton':>9} {'grouped':>9} {'loop':>9} "
          f"{'2nd':>9} {'grouped':>9} {'fp8':>9} {'scaled':>9} {'error':>8} {'fp8':>8}")  # fmt: skip
    for shape in [SHAPES[n] for n in chosen.shape] if chosen.shape else SHAPES:
        case = None
        for tokens in TOKENS:
            case = make(*shape, tokens, case)
            f = measure(case)
            label = "x".join(map(str, shape))
            print(f"{label:>26} {tokens:6} {f['triton']:9.1f} {f['grouped_mm']:9.1f} {f['loop']:9.1f} "
                  f"{f['triton second']:9.1f} {f['grouped_mm second']:9.1f} {f['triton fp8']:9.1f} "
                  f"{f.get('scaled', math.nan):9.1f} {f['error']:8.5f} {f['fp8 error']:8.5f}",
                  flush=True)  # fmt: skip
            if not (f["error"] < BOUND and f["fp8 error"] < BOUND_FP8):
                wrong.append(f"{label}, {tokens} tokens: error {f['error']}, in fp8 {f['fp8 error']}")
            where = f"{label}, {tokens} tokens"
            rows += [
                (f"{where}: grouped_mm / triton", f["grouped_mm"] / f["triton"], "x", FASTEST, ">="),
                (f"{where}: loop / triton", f["loop"] / f["triton"], "x", FASTEST, ">="),
                (
                    f"{where}: second product, grouped_mm / triton",
                    f["grouped_mm second"] / f["triton second"],
                    "x",
                    FASTEST,
                    ">=",
                ),
            ]
            if "scaled" in f:
                rows.append((f"{where}: fp8, scaled / triton", f["scaled"] / f["triton fp8"], "x", FASTEST, ">="))
            rows.append((f"{where}: triton, bfloat16 / fp8", f["triton"] / f["triton fp8"], "x", None, ">="))
            raw.update({f"{where}: {name}": value for name, value in f.items()})
        del case
        torch.cuda.empty_cache()
    result = Result("moe", CONDITIONS, ["torch", "triton", "opdock"], rows, raw)
    print(result.table())
    for line in wrong:
        print("WRONG", line)
    write(result, chosen.out)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
