"""Time the experts of a step on a GPU: our Triton kernels, torch's grouped product, and a loop over the experts.

    python benchmarks/moe.py [--shape N ...] [--compiled] [--seconds N] [--out FOLDER]

For each shape and number of tokens, with random routing: microseconds of the whole step (from the chosen experts to
the weighted sum) of each in bfloat16, of the second product alone, and of the step with fp8 weights; ratios of the
others to ours. Ours is compared with float64 on some tokens first. Exit status 1 for a wrong result; of a ratio below
1 the record says by how much and why.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import floors
import gpu_timing
import shortfall
import torch
import torch.nn.functional as F
from gpu_timing import graph_time
from record import Result, Row, write
from shortfall import Facts
from torch import Tensor
from warm import compile_first

SHAPES = ((128, 2048, 768), (64, 2048, 1408), (128, 4096, 1408), (64, 4096, 2048))
TOKENS, TOP_K = (1, 8, 64, 512, 4096), 8
FASTEST, CHECKED, BOUND, BOUND_FP8 = 1.0, 8, 0.02, 0.1
CONDITIONS = (
    "bfloat16, top 8, random routing, 16 (up to 8 tokens) or 4 routings rotated in one CUDA graph, median of 30 "
    "replays (10 for 4096 tokens); the weights of the experts that are hit exceed the L2 cache. grouped_mm: sort, "
    "gather, torch._grouped_mm, our gated activation, torch._grouped_mm, scatter and sum, in the same graph, as "
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


def make(experts: int, hidden: int, inner: int, tokens: int, before: Case | None, *, filled: bool = True) -> Case:
    """Return a case; the weights of the one before are used again where given; ``filled``: not of zeros."""
    if not filled:
        sizes = (experts, 2 * inner, hidden), (experts, hidden, inner)
        w13, w2 = (torch.zeros(size, device="cuda", dtype=torch.bfloat16) for size in sizes)
        eight = tuple((w.to(torch.float8_e4m3fn), torch.ones(w.shape[:2], device="cuda")) for w in (w13, w2))
        before = Case(w13, w2, (*eight[0], *eight[1]), [])
    elif before is None:
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


def exact(case: Case) -> Tensor:
    """Return the results of some tokens of the first routing in float64."""
    x, weights, ids = case.calls[0]
    want = torch.zeros(min(CHECKED, x.shape[0]), x.shape[1], device=x.device, dtype=torch.float64)
    inner = case.w2.shape[2]
    for token in range(want.shape[0]):
        for slot, expert in enumerate(ids[token].tolist()):
            made = case.w13[expert].double() @ x[token].double()
            made = case.w2[expert].double() @ (F.silu(made[:inner]) * made[inner:])
            want[token] += made * weights[token, slot].double()
    return want


def error(case: Case, call: Callable[[Tensor, Tensor, Tensor], Tensor], want: Tensor) -> float:
    """Return the largest difference to float64 over some tokens, as a part of the largest value."""
    got = call(*case.calls[0])[: want.shape[0]].double()
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

    want = exact(case)
    found = {"error": error(case, ours, want), "peer error": error(case, lambda *c: grouped(case, *c), want)}
    found["triton"] = graph_time([lambda c=c: ours(*c) for c in case.calls])
    found["grouped_mm"] = graph_time([lambda c=c: grouped(case, *c) for c in case.calls])
    w13, s13, w2, s2 = case.fp8

    def ours8(x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        return moe.fused_experts(x, w13, w2, weights, ids, w13_scale=s13, w2_scale=s2)

    found["fp8 error"] = error(case, ours8, want)
    found["triton fp8"] = graph_time([lambda c=c: ours8(*c) for c in case.calls])
    try:
        found["scaled error"] = error(case, lambda *c: scaled(case, *c), want)
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


def hit_weights(case: Case, *tensors: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return, for each routing, as many experts' weights of two tensors as it hits, from a place of its own."""
    made = []
    for number, (_, _, ids) in enumerate(case.calls):
        count, experts = int(ids.unique().numel()), case.w13.shape[0]
        start = number * 8 % (experts - count + 1)
        first, second = (tensor[start : start + count] for tensor in tensors)
        made.append((first, second))
    return made


def facts_of(case: Case, found: dict[str, float], kind: str) -> Facts:
    """Return what the run says of one figure that falls short; the floors are measured.

    Args:
        case: the weights and routings.
        found: the times of the case.
        kind: ``step``, ``loop``, ``second`` or ``fp8``.
    """
    x, weights, ids = case.calls[0]
    outer, inner = case.w13.shape[2], case.w2.shape[2]
    products = 1 if kind == "second" else 3
    work = 2.0 * ids.numel() * outer * inner * products / 1e6
    eight = kind == "fp8"
    w13, s13, w2, s2 = case.fp8
    ours, peer = {
        "step": ("triton", "grouped_mm"),
        "loop": ("triton", "loop"),
        "second": ("triton second", "grouped_mm second"),
        "fp8": ("triton fp8", "scaled"),
    }[kind]
    read = hit_weights(case, *((w13, w2) if eight else (case.w13, case.w2)))
    if kind == "second":
        read = [(second, second[:0]) for _, second in read]
    launches = 1
    if kind != "second":
        from opdock.nn.kernels.triton import moe

        a, b = (w13, w2) if eight else (case.w13, case.w2)
        scales = {"w13_scale": s13, "w2_scale": s2} if eight else {}
        launches = floors.launches_of(functools.partial(moe.fused_experts, x, a, b, weights, ids, **scales))
    return Facts(
        found[ours],
        found[peer],
        FASTEST,
        floors.launch_time(),
        launches=launches,
        read=floors.read_time(read),
        product=work / floors.product_rate(torch.float8_e4m3fn if eight else torch.bfloat16),
        units=floors.units(),
    )


def warm(job: tuple[tuple[int, int, int], int]) -> str:
    """Compile what one case needs; returns "" or what went wrong."""
    from opdock.nn.kernels.triton import moe

    shape, tokens = job
    try:
        case = make(*shape, tokens, None, filled=False)
        x, weights, ids = case.calls[0]
        w13, s13, w2, s2 = case.fp8
        moe.fused_experts(x, case.w13, case.w2, weights, ids)
        moe.fused_experts(x, w13, w2, weights, ids, w13_scale=s13, w2_scale=s2)
        grouped(case, x, weights, ids)
        torch.cuda.synchronize()
    except Exception as err:  # noqa: BLE001 - told, and met again
        return f"{job}: {type(err).__name__}: {str(err)[:150]}"
    return ""


def main() -> int:
    """Run the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", action="append", type=int, metavar="N", help="only this one, from 0")
    parser.add_argument("--compiled", action="store_true", help="the kernels are compiled already")
    parser.add_argument("--seconds", type=float, default=1e9, help="after so many no further size is begun")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    chosen = parser.parse_args()
    shapes = [SHAPES[n] for n in chosen.shape] if chosen.shape else SHAPES
    began = time.perf_counter()
    if not chosen.compiled:
        compile_first(warm, [(shape, tokens) for tokens in TOKENS for shape in shapes], most=10)
    torch.manual_seed(0)
    rows, raw, wrong = list[Row](), dict[str, float](), list[str]()
    reasons, notes = dict[str, str](), list[str]()
    print(f"{'experts x hidden x inner':>26} {'tokens':>6} {'triton':>9} {'grouped':>9} {'loop':>9} "
          f"{'2nd':>9} {'grouped':>9} {'fp8':>9} {'scaled':>9} {'error':>8} {'fp8':>8}")  # fmt: skip
    for shape in shapes:
        case = None
        for tokens in TOKENS:
            if time.perf_counter() - began > chosen.seconds:
                notes.append(f"Left out for lack of time: {shape}, {tokens} tokens.")
                continue
            gpu_timing.REPLAYS = 10 if tokens > 512 else 30
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
            ratios = {
                "step": ("grouped_mm / triton", f["grouped_mm"] / f["triton"]),
                "loop": ("loop / triton", f["loop"] / f["triton"]),
                "second": ("second product, grouped_mm / triton", f["grouped_mm second"] / f["triton second"]),
            }
            if "scaled" in f:
                ratios["fp8"] = ("fp8, scaled / triton", f["scaled"] / f["triton fp8"])
            for kind, (words, ratio) in ratios.items():
                rows.append((f"{where}: {words}", ratio, "x", FASTEST, ">="))
                if ratio < FASTEST:
                    why, times = floors.explain(functools.partial(facts_of, case, f, kind))
                    reasons[f"{where}: {words}"] = why
                    raw.update({f"{where}: {words}, {name}": value for name, value in times.items()})
            rows.append((f"{where}: triton, bfloat16 / fp8", f["triton"] / f["triton fp8"], "x", None, ">="))
            raw.update({f"{where}: {name}": value for name, value in f.items()})
        del case
        torch.cuda.empty_cache()
    notes.append(f"Compiled and measured in {time.perf_counter() - began:.0f} s.")
    result = Result("moe", CONDITIONS, ["torch", "triton", "opdock"], rows, raw)
    print(result.table() + "\n\n" + shortfall.told(reasons, tuple(notes)))
    for line in wrong:
        print("WRONG", line)
    write(result, chosen.out)
    shortfall.append(chosen.out, result.name, reasons, tuple(notes))
    return bool(wrong)


if __name__ == "__main__":
    with floors.quiet_collector():
        code = main()
    sys.exit(code)
