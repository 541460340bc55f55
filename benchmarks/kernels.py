"""Time every kernel of the tables on a GPU, our providers beside other people's, in one run.

    python benchmarks/kernels.py [--quick] [--only OP ...] [--peers FOLDER] [--out FOLDER]

For each op, size and provider: microseconds of one call, in bfloat16; the ratio of the best peer to ours (the provider
that the priority in force chooses, at least 0.99); and, at 16,384 tokens, ours over a copy kernel that moves the same
bytes. Then the norms of one decode step: kernels launched and time on the host. Every provider of ours is compared
with the definition at every size before it is timed. A peer that is not in the folder is left out, in words. Exit
status 1 for a wrong result or a limit that is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import time
from collections.abc import Callable
from pathlib import Path

import peers
import torch
from decode_step import decode_step
from gpu_timing import graph_time, sets_for
from kernel_cases import Case, Inputs, Provider, cases, error_of, peers_of
from kernel_copy import copy_time
from kernel_ours import activate, ours_of
from record import Result, Row, write

SIZES, QUICK, LARGEST = (1, 32, 256, 4096, 16384), (32, 16384), 16384
FASTEST, COPY, COPY_CACHE = 0.99, 1.04, 1.12
COLUMNS = ("cuda", "triton", "vllm_c", "torch_F", "inductor", "inductor_", "liger", "flaggems", "native")
CONDITIONS = (
    "bfloat16, fp8 e4m3. Microseconds of one call: all providers of a size over the same up to 16 rotated sets of "
    "buffers (about 400 MB), captured in one CUDA graph (four times over below 1,000 tokens, else so often that it has "
    "at least 8 calls: a replay's own cost is little of it), median of 30 replays, the better of two such captures. "
    "vllm_c writes into a given output, inductor_ where ours does, the others allocate. best: the fastest peer, native "
    "left out. copy: a Triton kernel that moves the same bytes, the best of six configurations, in the same way. "
    "decode: eager, Python's garbage collector off while the host is timed."
)


def timed(make: Provider, sets: list[Inputs], repeats: int) -> float | str:
    """Return the microseconds of a call of one provider, or why it has none."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # FlagGems prints at each call
            return graph_time([make(args) for args in sets], repeats=repeats)
    except Exception as err:  # noqa: BLE001 - a peer that cannot do this size is told, and the others go on
        torch.cuda.synchronize()
        return f"{type(err).__name__}: {str(err).partition(chr(10))[0][:160]}"


def repeats_of(tokens: int, sets: int) -> int:
    """Return how often the calls over all sets are captured."""
    return 4 if tokens < 1000 else -(-8 // sets)


def measure(
    case: Case, tokens: int, hidden: int, modules: dict[str, object]
) -> tuple[dict[str, float], list[str], str]:
    """Return (microseconds by provider, what went wrong, the provider that will run) of one size."""
    args = case.inputs(tokens, hidden)
    sets = [args, *(case.inputs(tokens, hidden) for _ in range(sets_for(case.moved * tokens * hidden) - 1))]
    mine, chosen = ours_of(case, args)
    wrong = []
    for name, one in mine.items():
        try:
            miss = error_of(case, one.call, args, provider=one.provider)
        except Exception as err:  # noqa: BLE001 - told as a wrong result, and the others go on
            miss = f"{type(err).__name__}: {str(err).partition(chr(10))[0][:160]}"
        if miss:
            wrong.append(f"{case.name} {tokens} x {hidden}, {name}: {miss}")
    makers: dict[str, Provider] = {
        **{name: one.prepare for name, one in mine.items()},
        **peers_of(case, modules),
        "native": lambda a: lambda: case.native(*a),
    }
    repeats, found = repeats_of(tokens, len(sets)), {}
    for turn in range(2):
        for name, make in reversed(makers.items()) if turn else makers.items():
            if turn and (name == "native" or name not in found):
                continue
            took = timed(make, sets, repeats)
            if isinstance(took, str):
                wrong.append(f"{case.name} {tokens} x {hidden}, {name}: not timed, {took}")
            else:
                found[name] = min(took, found.get(name, took))
    if tokens == LARGEST:
        found["copy"] = copy_time(case.moved * tokens * hidden, repeats)
    return found, wrong, chosen


def line(case: Case, tokens: int, hidden: int, found: dict[str, float], chosen: str) -> str:
    """Return one line of the table."""
    best = best_peer(found)
    cells = [f"{found[c]:8.2f}" if c in found else f"{'-':>8}" for c in COLUMNS]
    text = f"{case.name:38} {tokens:6} {hidden:5} " + " ".join(cells)
    text += f" {best or '-':>9}"
    text += f" {found[best] / found[chosen]:6.3f}" if best and chosen in found else f" {'-':>6}"
    return text + (
        f" {found['copy']:8.2f} {found[chosen] / found['copy']:6.3f}" if "copy" in found and chosen in found else ""
    )


def best_peer(found: dict[str, float]) -> str:
    """Return the fastest peer's name, "" without any."""
    return min((n for n in COLUMNS[2:-1] if n in found), key=lambda n: found[n], default="")


def rows_of(case: Case, tokens: int, hidden: int, found: dict[str, float], chosen: str) -> list[Row]:
    """Return the figures that have a limit."""
    label, best, rows = f"{case.name}, {tokens} x {hidden}", best_peer(found), []
    if best and chosen in found:
        rows.append((f"{label}: {best} / {chosen}", found[best] / found[chosen], "x", FASTEST, ">="))
    if "copy" in found and chosen in found:
        limit = COPY_CACHE if case.op is None else COPY
        rows.append((f"{label}: {chosen} / copy", found[chosen] / found["copy"], "x", limit, "<="))
    return rows


def main() -> int:
    """Run all tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="32 and 16,384 tokens, the first hidden size")
    parser.add_argument("--only", action="append", metavar="OP", help="an op whose name begins so, or decode")
    parser.add_argument("--peers", type=Path, metavar="FOLDER", help="where the peers' wheels and extension lie")
    parser.add_argument("--extension", type=Path, metavar="FILE", help="our extension, if the package is not active")
    parser.add_argument("--out", type=Path, help="folder for kernels.json and kernels.txt")
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 4096
    others = peers.load(given.peers)
    notes = [activate(given.extension), *(f"{name} is left out: {why}." for name, why in others.absent.items())]
    print(*notes, sep="\n")
    head = f"{'op':38} {'tokens':>6} {'hidden':>5} " + " ".join(f"{c:>8}" for c in COLUMNS)
    lines = [f"{head} {'best':>9} {'ratio':>6} {'copy':>8} {'/copy':>6}"]
    print(lines[0], flush=True)
    rows: list[Row] = []
    raw: dict[str, float] = {}
    wrong: list[str] = []
    wanted: Callable[[str], bool] = lambda name: not given.only or any(name.startswith(o) for o in given.only)  # noqa: E731
    start = time.perf_counter()
    told = ", ".join(f"{peer} {version}" for peer, version in others.versions.items())

    def save(*, done: bool) -> Result:
        """Write what there is: a run that is cut off leaves a record that says so."""
        conditions = f"{torch.cuda.get_device_name()}. {CONDITIONS} Peers: {told or 'none'}."
        conditions += "" if done else " UNFINISHED."
        result = Result("kernels", conditions, ("opdock", "opdock-cuda", "torch", "triton"), rows, raw)
        took = f"{time.perf_counter() - start:.0f} s."
        tables = "\n".join(["", *notes, took, *(f"WRONG {w}" for w in wrong), "", *lines, ""])
        if given.out is not None and rows:
            write(result, given.out)
            with (given.out / "kernels.txt").open("a", encoding="utf-8") as file:
                file.write(tables)
        if done:
            print(result.table() if rows else "nothing was measured", tables, sep="\n")
        return result

    if wanted("decode"):  # first, in a process that has compiled nothing
        rows, raw = decode_step(others.modules)
    for case in filter(lambda c: wanted(c.name), cases()):
        for hidden in case.hiddens[:1] if given.quick else case.hiddens:
            for tokens in QUICK if given.quick else SIZES:
                found, misses, chosen = measure(case, tokens, hidden, others.modules)
                lines.append(line(case, tokens, hidden, found, chosen))
                print(lines[-1], *misses, sep="\n", flush=True)
                rows += rows_of(case, tokens, hidden, found, chosen)
                raw |= {f"{case.name}, {tokens} x {hidden}, {name}": took for name, took in found.items()}
                wrong += misses
        save(done=False)
    return 1 if save(done=True).missed() or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
