"""Time attention over a paged cache on a GPU, beside torch's own over contiguous keys and values, in one run.

    python benchmarks/attention.py [--quick] [--decode] [--prefill] [--seconds N] [--out FOLDER]

Decode: one token for each request, 32 query heads, 8 key heads of 128, bfloat16, blocks of 16 in random order. Prefill:
one prompt, with and without a prefix that lies in the cache. Each line: microseconds of ours, of SDPA by FlashAttention
and by cuDNN, and the ratio of the faster of the two to ours. Results are compared with float64 before they are timed.
Where a limit is missed, more is measured, and the record says by how much and why. Exit status 1 for that or a wrong
result.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import floors
import gpu_timing
import shortfall
import torch
import torch.nn.functional as F
import turns
from gpu_timing import sets_for
from record import Result, Row, write
from shortfall import Facts
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

import opdock
from opdock import OpdockConfig
from opdock.nn.attention import Attention, AttentionMetadata
from opdock.nn.attention.dense import attend
from opdock.nn.kernels.triton.attention_tuning import tuning_for_prompts, tuning_for_single

HEADS, KV_HEADS, SIZE, BLOCK = 32, 8, 128, 16
DECODE = tuple((batch, context) for batch in (1, 8, 64, 256) for context in (512, 4096, 32768))
PREFILL = ((1024, 0), (4096, 0), (16384, 0), (1024, 3072), (1024, 15360), (4096, 12288))
DECODE_RATIO, DECODE_RATE, PREFILL_RATIO, PREFIX_RATIO = 0.95, 4.0, 0.95, 0.7
PEERS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
TOLERANCE = 2e-2
LONG = 1500.0
"""Microseconds of a call from which one capture and a third of the replays are enough."""
CONDITIONS = (
    "bfloat16, 32 query heads, 8 key heads of 128. Microseconds of one call, the cache's update not counted: sets of "
    "buffers of more than 400 MB together, one call for each in one CUDA graph (four times over for small ones); the "
    "graphs of all sides are replayed in turns, and the median of 30 turns counts (of 10 where a call takes over 1.5 "
    "ms). Ours: blocks of 16 in random order, one block table for all sets, as the layers of a model share one; it may "
    "begin before the kernel ahead of it has ended, and then waits for it. Peers: "
    "F.scaled_dot_product_attention over the same memory as contiguous keys and values, and with a prefix "
    "FlashAttention with the causal mask at the lower right. best: the faster peer."
)


class Ours:
    """The layer that the platform in force builds, over caches in given memory."""

    def __init__(self, device: str) -> None:
        """Build it."""
        with opdock.set_current_config(OpdockConfig()):
            self.layer = Attention(HEADS, SIZE, SIZE**-0.5, KV_HEADS, prefix="attn").to(device)

    def call(self, q: Tensor, keys: Tensor, values: Tensor, metadata: AttentionMetadata) -> Callable[[], Tensor]:
        """Return a call; the cache holds everything already.

        Args:
            q: (tokens, heads, size).
            keys: memory of all positions.
            values: likewise.
            metadata: of the step.
        """
        shape = (-1, BLOCK, KV_HEADS, SIZE)
        key_cache, value_cache = keys.view(shape), values.view(shape)
        self.layer.bind_cache(key_cache, value_cache, torch.bfloat16)
        impl = self.layer.impl
        new = keys.view(-1, KV_HEADS, SIZE)[: q.shape[0]], values.view(-1, KV_HEADS, SIZE)[: q.shape[0]]

        def run() -> Tensor:
            whole = impl.prompts_alone(q, *new, metadata)
            if whole is not None:
                return whole
            out = torch.empty_like(q)
            impl.forward(q, *new, key_cache, value_cache, metadata, out)
            return out

        return run


def memory(positions: int, count: int) -> list[tuple[Tensor, Tensor]]:
    """Return keys and values for so many positions, ``count`` times."""
    made = []
    for _ in range(count):
        pair = tuple(torch.empty(positions * KV_HEADS * SIZE, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        for tensor in pair:
            for part in tensor.split(1 << 28):
                part.normal_()
        made.append(pair)
    return made  # type: ignore[return-value]


def step(new: int, total: int, requests: int, *, shuffled: bool = True) -> AttentionMetadata:
    """Return a step of requests of one length; the slots are not used."""
    blocks = total // BLOCK
    order = torch.randperm(requests * blocks) if shuffled else torch.arange(requests * blocks)
    return AttentionMetadata(
        query_start_loc=torch.arange(0, requests * new + 1, new, dtype=torch.int32, device="cuda"),
        seq_lens=torch.full((requests,), total, dtype=torch.int32, device="cuda"),
        block_table=order.int().view(requests, blocks).cuda(),
        slot_mapping=torch.full((requests * new,), -1, device="cuda"),
        num_tokens=requests * new,
        max_query_len=new,
        max_seq_len=total,
        query_lens=(new,) * requests,
        context_lens=(total - new,) * requests,
    )


def timed(sides: Mapping[str, Sequence[Callable[[], Tensor]]], repeats: int = 1) -> dict[str, float]:
    """Return the microseconds of a call of each side, in turns; fewer where a call takes long.

    Args:
        sides: calls by name, one for each set of buffers.
        repeats: how often the calls are captured, one after the other.
    """
    first = next(iter(sides.values()))[0]
    first()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    first()
    end.record()
    end.synchronize()
    rounds = turns.ROUNDS
    if start.elapsed_time(end) * 1e3 > LONG:
        rounds = max(5, rounds // 3)
    return turns.in_turns({name: [*calls] * repeats for name, calls in sides.items()}, rounds=rounds)


def noise_of(calls: Sequence[Callable[[], Tensor]], repeats: int = 1) -> float:
    """Return by which part of it a side differs from itself."""
    one, two = timed({"one": calls, "two": calls}, repeats).values()
    return abs(one / two - 1.0)


def error_of(
    ours: Ours, call: Callable[[], Tensor], q: Tensor, pair: tuple[Tensor, Tensor], m: AttentionMetadata
) -> float:
    """Return the largest error of the last request's last rows against float64."""
    rows = min(m.max_query_len, 4)
    shape = (-1, BLOCK, KV_HEADS, SIZE)
    keys, values = (t.view(shape)[m.block_table[-1].long()].flatten(0, 1) for t in pair)
    want = attend(q[-rows:].double(), keys.double(), values.double(), ours.layer.spec)
    return float((call()[-rows:].double() - want).abs().max())


def decode(ours: Ours, batch: int, context: int) -> tuple[dict[str, float], float, Callable[[], Facts]]:
    """Return (microseconds by name, largest error, what to measure if a limit is missed) of one size."""
    size = batch * context * KV_HEADS * SIZE * 4
    count = min(sets_for(size), int(free_memory() // (1.1 * size)))
    sets, repeats = memory(batch * context, count), 4 if count == gpu_timing.MAX_SETS else 1
    queries = [torch.randn(batch, HEADS, SIZE, dtype=torch.bfloat16, device="cuda") for _ in sets]
    metadata = step(1, context, batch)
    calls = [ours.call(q, *pair, metadata) for q, pair in zip(queries, sets, strict=True)]
    error = error_of(ours, calls[-1], queries[-1], sets[-1], metadata)

    def peer(kernel: SDPBackend, q: Tensor, pair: tuple[Tensor, Tensor]) -> Tensor:
        keys, values = (t.view(batch, KV_HEADS, context, SIZE) for t in pair)
        with sdpa_kernel(kernel):
            return F.scaled_dot_product_attention(q[:, :, None], keys, values, enable_gqa=True)

    peers = {
        name: [functools.partial(peer, kernel, *a) for a in zip(queries, sets, strict=True)]
        for name, kernel in PEERS.items()
    }
    found = timed({"ours": calls, **peers}, repeats)

    def facts() -> Facts:
        ordered = step(1, context, batch, shuffled=False)
        in_order = [ours.call(q, *pair, ordered) for q, pair in zip(queries, sets, strict=True)]
        again = timed({"ours": calls, "in order": in_order}, repeats)
        return Facts(
            found["ours"],
            best_of(found),
            DECODE_RATIO,
            floors.launch_time(),
            read=floors.read_time(sets, repeats),
            programs=KV_HEADS * batch * tuning_for_single(ours.layer.spec, batch, context, floors.units()).splits,
            units=floors.units(),
            noise=noise_of(peers[min(peers, key=lambda name: found[name])], repeats),
            variants={"with the blocks in order": again["in order"] / again["ours"] * found["ours"]},
        )

    return found, error, facts


def prefill(ours: Ours, new: int, prefix: int) -> tuple[dict[str, float], float, Callable[[], Facts]]:
    """Return (microseconds by name, largest error, what to measure if a limit is missed) of one size."""
    total = new + prefix
    sets = memory(total, max(2, min(8, sets_for(total * KV_HEADS * SIZE * 4 + new * HEADS * SIZE * 4))))
    queries = [torch.randn(new, HEADS, SIZE, dtype=torch.bfloat16, device="cuda") for _ in sets]
    metadata = step(new, total, 1, shuffled=bool(prefix))
    calls = [ours.call(q, *pair, metadata) for q, pair in zip(queries, sets, strict=True)]
    error = error_of(ours, calls[-1], queries[-1], sets[-1], metadata)
    grouped = [tuple(t.view(1, total, KV_HEADS, SIZE).transpose(1, 2) for t in pair) for pair in sets]
    if prefix:  # this mask does not go with grouped heads
        grouped = [tuple(t.repeat_interleave(HEADS // KV_HEADS, 1) for t in pair) for pair in grouped]
    mask = causal_lower_right(new, total) if prefix else None

    def peer(kernel: SDPBackend, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        q = q.transpose(0, 1)[None]
        with sdpa_kernel(kernel):
            return F.scaled_dot_product_attention(
                q, keys, values, attn_mask=mask, is_causal=not prefix, enable_gqa=not prefix
            )

    peers = {
        name: [functools.partial(peer, kernel, q, *pair) for q, pair in zip(queries, grouped, strict=True)]
        for name, kernel in PEERS.items()
        if not (prefix and name == "cudnn")  # which has no such mask
    }
    found = timed({"ours": calls, **peers})

    def facts() -> Facts:
        ordered = step(new, total, 1, shuffled=False)
        in_order = [ours.call(q, *pair, ordered) for q, pair in zip(queries, sets, strict=True)]
        again = timed({"ours": calls, "in order": in_order})
        tuning = tuning_for_prompts(ours.layer.spec)
        return Facts(
            found["ours"],
            best_of(found),
            PREFIX_RATIO if prefix else PREFILL_RATIO,
            floors.launch_time(),
            product=work_of(new, prefix) / floors.product_rate() / 1e6,
            programs=KV_HEADS * (new * (HEADS // KV_HEADS) // tuning.block_m + 1) if prefix else None,
            units=floors.units(),
            noise=noise_of(peers[min(peers, key=lambda name: found[name])]),
            variants={"with the blocks in order": again["in order"] / again["ours"] * found["ours"]} if prefix else {},
        )

    return found, error, facts


def free_memory() -> int:
    """Return the bytes that can still be had."""
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


def best_of(found: dict[str, float]) -> float:
    """Return the time of the faster peer."""
    return min(found[name] for name in PEERS if name in found)


def work_of(new: int, prefix: int) -> float:
    """Return the additions and multiplications of a prompt behind a prefix."""
    return 4 * HEADS * SIZE * (new * prefix + new * (new + 1) / 2)


def main() -> int:
    """Run both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer sizes and replays")
    parser.add_argument("--decode", action="store_true", help="decode alone")
    parser.add_argument("--prefill", action="store_true", help="prefill alone")
    parser.add_argument("--seconds", type=float, default=1e9, help="after so many no further size is begun")
    parser.add_argument("--out", type=Path, help="folder for attention.json and attention.txt")
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    if given.quick:
        turns.ROUNDS = 8
    with floors.quiet_collector():
        return run(given)


class Table:
    """What has been measured: rows, times, why limits are missed, what is wrong and what was left out."""

    def __init__(self, seconds: float) -> None:
        """Begin; after so many seconds no further size is taken."""
        self.seconds, self.began = seconds, time.perf_counter()
        self.rows, self.raw, self.reasons = list[Row](), dict[str, float](), dict[str, str]()
        self.wrong, self.notes = list[str](), list[str]()

    def left_out(self, label: str, size: float = 0.0) -> bool:
        """Return whether a size is not measured, and note why: no time, or no memory for its bytes."""
        if time.perf_counter() - self.began > self.seconds:
            self.notes.append(f"Left out for lack of time: {label}.")
        elif free_memory() < 1.2 * size:
            self.notes.append(f"Left out: {label}, whose {size / 1e9:.0f} GB do not fit.")
        else:
            return False
        return True

    def tell(self, label: str, found: dict[str, float], error: float, amount: str, rate: float) -> float:
        """Print the times of a size and keep them; returns the ratio."""
        ratio = best_of(found) / found["ours"]
        cells = " ".join(f"{found[n]:9.2f}" if n in found else f"{'-':>9}" for n in ("ours", *PEERS))
        shown = f"{rate:5.2f} {'-':>7}" if amount == "TB/s" else f"{'-':>5} {rate:7.0f}"
        print(f"{label:34} {cells} {ratio:6.3f} {shown} {error:8.4f}", flush=True)
        self.raw.update({f"{label}, {n}": t for n, t in found.items()})
        if not error < TOLERANCE:
            self.wrong.append(f"{label}: largest error {error:.3g}")
        return ratio

    def add(self, row: Row, facts: Callable[[], Facts]) -> None:
        """Keep a row; if it misses its limit, measure why."""
        self.rows.append(row)
        if row[3] is not None and row[1] < row[3]:
            self.reasons[row[0]], times = floors.explain(facts)
            self.raw.update({f"{row[0]}, {name}": t for name, t in times.items()})


def run(given: argparse.Namespace) -> int:
    """Measure, print and write what was asked for."""
    ours, table = Ours("cuda"), Table(given.seconds)
    print(f"{'what':34} {'ours':>9} {'flash':>9} {'cudnn':>9} {'ratio':>6} {'TB/s':>5} {'TFLOP/s':>7} {'error':>8}")
    for batch, context in () if given.prefill else DECODE:
        label, size = f"decode, batch {batch}, context {context}", batch * context * KV_HEADS * SIZE * 4
        if (given.quick and batch * context > 2_500_000) or table.left_out(label, size):
            continue
        found, error, facts = decode(ours, batch, context)
        rate = size / found["ours"] / 1e6
        ratio = table.tell(label, found, error, "TB/s", rate)
        if rate >= DECODE_RATE and ratio < DECODE_RATIO:
            table.add((f"{label}: bytes read", rate, "TB/s", DECODE_RATE, ">="), facts)
        else:
            table.add((f"{label}: best / ours", ratio, "x", DECODE_RATIO, ">="), facts)
        del facts
    for new, prefix in () if given.decode else PREFILL:
        label = f"prefill, {new} tokens, prefix {prefix}"
        if table.left_out(label):
            continue
        found, error, facts = prefill(ours, new, prefix)
        ratio = table.tell(label, found, error, "TFLOP/s", work_of(new, prefix) / found["ours"] / 1e6)
        table.add((f"{label}: best / ours", ratio, "x", PREFIX_RATIO if prefix else PREFILL_RATIO, ">="), facts)
        del facts
    notes = (*table.notes, f"Measured in {time.perf_counter() - table.began:.0f} s.")
    where = f"{CONDITIONS} {torch.cuda.get_device_name()}."
    result = Result("attention", where, ("torch", "triton", "opdock"), table.rows, table.raw)
    print(*table.wrong, shortfall.told(table.reasons, notes), sep="\n")
    if given.out is not None:
        write(result, given.out)
        shortfall.append(given.out, result.name, table.reasons, notes)
    return bool(table.wrong or result.missed())


if __name__ == "__main__":
    raise SystemExit(main())
