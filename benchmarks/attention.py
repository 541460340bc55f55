"""Time attention over a paged cache on a GPU, beside torch's own over contiguous keys and values, in one run.

    python benchmarks/attention.py [--quick] [--decode] [--prefill] [--out FOLDER]

Decode: one token for each request, 32 query heads, 8 key heads of 128, bfloat16, blocks of 16 in random order. Prefill:
one prompt, with and without a prefix that lies in the cache. Each line: microseconds of ours, of SDPA by FlashAttention
and by cuDNN, and the ratio of the faster of the two to ours. Results are compared with float64 before they are timed.
Exit status 1 for a wrong result or a limit that is missed.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from pathlib import Path

import gpu_timing
import torch
import torch.nn.functional as F
from gpu_timing import graph_time, sets_for
from record import Result, Row, write
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

import opdock
from opdock import OpdockConfig
from opdock.nn.attention import Attention, AttentionMetadata
from opdock.nn.attention.dense import attend

HEADS, KV_HEADS, SIZE, BLOCK = 32, 8, 128, 16
DECODE = tuple((batch, context) for batch in (1, 8, 64, 256) for context in (512, 4096, 32768))
PREFILL = ((1024, 0), (4096, 0), (16384, 0), (1024, 3072), (1024, 15360), (4096, 12288))
DECODE_RATIO, DECODE_RATE, PREFILL_RATIO, PREFIX_RATIO = 0.95, 4.0, 0.95, 0.7
PEERS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
TOLERANCE = 2e-2
CONDITIONS = (
    "bfloat16, 32 query heads, 8 key heads of 128. Microseconds of one call, the cache's update not counted: sets of "
    "buffers of more than 400 MB together, one call for each in one CUDA graph (four times over for small ones), "
    "median of the replays, the better of two captures. Ours: blocks of 16 in random order. Peers: "
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


def timed(calls: list[Callable[[], Tensor]], repeats: int) -> float:
    """Return the microseconds of a call, the better of two captures."""
    return min(graph_time(calls, repeats=repeats) for _ in range(2))


def error_of(
    ours: Ours, call: Callable[[], Tensor], q: Tensor, pair: tuple[Tensor, Tensor], m: AttentionMetadata
) -> float:
    """Return the largest error of the last request's last rows against float64."""
    rows = min(m.max_query_len, 4)
    shape = (-1, BLOCK, KV_HEADS, SIZE)
    keys, values = (t.view(shape)[m.block_table[-1].long()].flatten(0, 1) for t in pair)
    want = attend(q[-rows:].double(), keys.double(), values.double(), ours.layer.spec)
    return float((call()[-rows:].double() - want).abs().max())


def decode(ours: Ours, batch: int, context: int) -> tuple[dict[str, float], float]:
    """Return (microseconds by name, largest error) of one size."""
    count = sets_for(batch * context * KV_HEADS * SIZE * 4)
    sets, repeats = memory(batch * context, count), 4 if count == gpu_timing.MAX_SETS else 1
    queries = [torch.randn(batch, HEADS, SIZE, dtype=torch.bfloat16, device="cuda") for _ in sets]
    steps = [step(1, context, batch) for _ in sets]
    calls = [ours.call(q, *pair, m) for q, pair, m in zip(queries, sets, steps, strict=True)]
    error = error_of(ours, calls[-1], queries[-1], sets[-1], steps[-1])
    found = {"ours": timed(calls, repeats)}

    def peer(q: Tensor, pair: tuple[Tensor, Tensor]) -> Tensor:
        keys, values = (t.view(batch, KV_HEADS, context, SIZE) for t in pair)
        return F.scaled_dot_product_attention(q[:, :, None], keys, values, enable_gqa=True)

    for name, kernel in PEERS.items():
        with sdpa_kernel(kernel):
            found[name] = timed([functools.partial(peer, *a) for a in zip(queries, sets, strict=True)], repeats)
    return found, error


def prefill(ours: Ours, new: int, prefix: int) -> tuple[dict[str, float], float]:
    """Return (microseconds by name, largest error) of one size."""
    total = new + prefix
    sets = memory(total, max(2, min(8, sets_for(total * KV_HEADS * SIZE * 4 + new * HEADS * SIZE * 4))))
    queries = [torch.randn(new, HEADS, SIZE, dtype=torch.bfloat16, device="cuda") for _ in sets]
    metadata = step(new, total, 1, shuffled=bool(prefix))
    calls = [ours.call(q, *pair, metadata) for q, pair in zip(queries, sets, strict=True)]
    error = error_of(ours, calls[-1], queries[-1], sets[-1], metadata)
    found = {"ours": timed(calls, 1)}

    grouped = [tuple(t.view(1, total, KV_HEADS, SIZE).transpose(1, 2) for t in pair) for pair in sets]
    if prefix:  # this mask does not go with grouped heads
        grouped = [tuple(t.repeat_interleave(HEADS // KV_HEADS, 1) for t in pair) for pair in grouped]
    mask = causal_lower_right(new, total) if prefix else None

    def peer(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        q = q.transpose(0, 1)[None]
        return F.scaled_dot_product_attention(
            q, keys, values, attn_mask=mask, is_causal=not prefix, enable_gqa=not prefix
        )

    for name, kernel in PEERS.items():
        if prefix and name == "cudnn":
            continue  # it has no such mask
        with sdpa_kernel(kernel):
            calls = [functools.partial(peer, q, *pair) for q, pair in zip(queries, grouped, strict=True)]
            found[name] = timed(calls, 1)
    return found, error


def main() -> int:
    """Run both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer sizes and replays")
    parser.add_argument("--decode", action="store_true", help="decode alone")
    parser.add_argument("--prefill", action="store_true", help="prefill alone")
    parser.add_argument("--out", type=Path, help="folder for attention.json and attention.txt")
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    if given.quick:
        gpu_timing.REPLAYS = 8
    ours, rows, raw, wrong = Ours("cuda"), list[Row](), dict[str, float](), list[str]()
    print(f"{'what':34} {'ours':>9} {'flash':>9} {'cudnn':>9} {'ratio':>6} {'TB/s':>5} {'TFLOP/s':>7} {'error':>8}")

    def tell(label: str, found: dict[str, float], error: float, amount: str, rate: float) -> float:
        best = min((n for n in PEERS if n in found), key=lambda n: found[n])
        ratio = found[best] / found["ours"]
        cells = " ".join(f"{found[n]:9.2f}" if n in found else f"{'-':>9}" for n in ("ours", *PEERS))
        shown = f"{rate:5.2f} {'-':>7}" if amount == "TB/s" else f"{'-':>5} {rate:7.0f}"
        print(f"{label:34} {cells} {ratio:6.3f} {shown} {error:8.4f}", flush=True)
        raw.update({f"{label}, {n}": t for n, t in found.items()})
        if not error < TOLERANCE:
            wrong.append(f"{label}: largest error {error:.3g}")
        return ratio

    for batch, context in () if given.prefill else DECODE:
        if given.quick and batch * context > 2_500_000:
            continue
        found, error = decode(ours, batch, context)
        label, rate = (
            f"decode, batch {batch}, context {context}",
            batch * context * KV_HEADS * SIZE * 4 / found["ours"] / 1e6,
        )
        ratio = tell(label, found, error, "TB/s", rate)
        if rate >= DECODE_RATE and ratio < DECODE_RATIO:
            rows.append((f"{label}: bytes read", rate, "TB/s", DECODE_RATE, ">="))
        else:
            rows.append((f"{label}: best / ours", ratio, "x", DECODE_RATIO, ">="))
    for new, prefix in () if given.decode else PREFILL:
        found, error = prefill(ours, new, prefix)
        work = 4 * HEADS * SIZE * (new * prefix + new * (new + 1) / 2)
        label = f"prefill, {new} tokens, prefix {prefix}"
        ratio = tell(label, found, error, "TFLOP/s", work / found["ours"] / 1e6)
        rows.append((f"{label}: best / ours", ratio, "x", PREFIX_RATIO if prefix else PREFILL_RATIO, ">="))
    result = Result(
        "attention", f"{CONDITIONS} {torch.cuda.get_device_name()}.", ("torch", "triton", "opdock"), rows, raw
    )
    print(*wrong, *(f"missed: {row[0]}: {row[1]:.3f}" for row in result.missed()), sep="\n")
    if given.out is not None:
        write(result, given.out)
    return bool(wrong or result.missed())


if __name__ == "__main__":
    raise SystemExit(main())
