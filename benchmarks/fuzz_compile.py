"""Put random programs through the compile passes, and some through Inductor, and count what goes wrong.

    python benchmarks/fuzz_compile.py [--n 10000] [--seed 0] [--inductor 300] [--out benchmarks/results]

A program is a graph of IR ops, views, clones, writes and opaque kernels; its meaning is that of the ops'
definitions, run one node at a time. Exit status 1 if the passes changed any, or took a program that uses what it
gave away.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from record import Result, Row, write

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "compile"))
from fuzz import Program, check, generate, registered, shrink
from fuzz.oracle import Run, compare, run_definitions

CONDITIONS = (
    "One thread. `wrong` compares outputs, inputs that were not given away and constants bit for bit, then layouts, "
    "shared memory, fake values, and the values after Inductor's reinplacing. Through Inductor: within 1e-4."
)
SHOWN = 3


def through_passes(first: int, count: int, *, verbose: bool) -> tuple[Counter[str], dict[str, list[int]]]:
    """Return the counts, and the seeds of what went wrong by kind."""
    counts: Counter[str] = Counter()
    wrong: dict[str, list[int]] = {}
    for seed in range(first, first + count):
        program = generate(seed)
        outcome = check(program, reinplace=True)
        counts["skipped"] += outcome.skipped
        counts["graphs"] += not outcome.skipped
        counts["nodes"] += outcome.nodes
        counts["clones before"] += outcome.clones
        counts["clones removed"] += outcome.removed
        counts["clones left"] += outcome.left
        if outcome.wrong:
            kind = outcome.wrong.partition("\n")[0].partition(":")[0]
            seeds = wrong.setdefault(kind, [])
            seeds.append(seed)
            if verbose and len(seeds) <= SHOWN:
                print(shrink(program, lambda p, k=kind: check(p, reinplace=True).wrong.startswith(k)))  # type: ignore[misc]
    return counts, wrong


def misuses(first: int, count: int) -> Counter[str]:
    """Return how many programs that use what they gave away were refused, and how many were not."""
    counts: Counter[str] = Counter()
    for seed in range(first, first + count):
        counts["not refused" if check(generate(seed, misuse=True)).wrong else "refused"] += 1
    return counts


def through_inductor(first: int, count: int) -> tuple[Counter[str], dict[str, list[int]]]:
    """Compile ``count`` programs as user code; return what became of them with opdock and with plain Inductor."""
    counts: Counter[str] = Counter()
    wrong: dict[str, list[int]] = {}
    seed = first
    while counts["programs"] < count:
        program = generate(seed, size=14, hops=False)
        verdict = _compiled(program, "opdock")
        if verdict != "skipped":
            counts["programs"] += 1
            plain = _compiled(program, "inductor") if verdict else ""
            label = "refused" if verdict.startswith("raises") else "wrong"
            if not verdict:
                counts["equal"] += 1
            elif plain:
                counts[f"{label}, by plain Inductor too"] += 1
            else:
                counts[f"{label}, by opdock alone"] += 1
                wrong.setdefault(verdict.partition("\n")[0][:80], []).append(seed)
        seed += 1
    return counts, wrong


def _compiled(program: Program, backend: str) -> str:
    """Return what is wrong with a program that a backend compiled, "" if nothing is."""
    module, inputs = program.module(), program.tensors()
    try:
        want, free = run_definitions(program.module(), program.tensors())
    except RuntimeError:
        return "skipped"
    constants = dict(module.named_buffers())
    torch._dynamo.reset()

    def fn(*args: Any) -> Any:
        return module(*args)

    try:
        with program.chosen(), torch.no_grad():
            outputs = torch.compile(fn, backend=backend, fullgraph=True)(*inputs)
    except Exception as err:  # noqa: BLE001 - whatever it raises is counted
        return f"raises {type(err).__name__}: {err}"
    return compare(want, Run(outputs, inputs, constants), free, close=True)


def rows(*found: tuple[str, Counter[str], dict[str, list[int]]]) -> list[Row]:
    """Return the counts as rows; what must not happen has the budget 0."""
    made: list[Row] = []
    for part, counts, wrong in found:
        made += [(f"{part}: {what}", float(n), "", *_budget(what)) for what, n in counts.items()]
        made += [
            (f"{part}: {kind}, seeds {seeds[:5]}", float(len(seeds)), "", 0.0, "<=") for kind, seeds in wrong.items()
        ]
    return made


def _budget(what: str) -> tuple[float | None, str]:
    return (0.0, "<=") if what in ("not refused", "wrong, by opdock alone") else (None, "")


def _timed(run: Callable[[], Any], raw: dict[str, float], name: str) -> Any:
    start = time.perf_counter()
    result = run()
    raw[name] = time.perf_counter() - start
    return result


def main() -> int:
    """Run the programs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--n", type=int, default=10000, help="programs through the passes")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--inductor", type=int, default=0, help="programs through torch.compile")
    parser.add_argument("--verbose", action="store_true", help="print the smallest programs that go wrong")
    parser.add_argument("--out", type=Path, help="folder for fuzz_compile.json and fuzz_compile.txt")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("opdock").setLevel(logging.ERROR)
    raw: dict[str, float] = {}
    with registered():
        lowered = _timed(lambda: through_passes(given.seed, given.n, verbose=given.verbose), raw, "passes, s")
        misused = _timed(lambda: misuses(given.seed, max(1, given.n // 5)), raw, "misuse, s")
        parts = [("passes", *lowered), ("misuse", misused, {})]
        if given.inductor:
            parts.append(
                ("torch.compile", *_timed(lambda: through_inductor(given.seed, given.inductor), raw, "compile, s"))
            )
    result = Result("fuzz_compile", CONDITIONS, ["torch", "opdock"], rows(*parts), raw)
    print(result.table())
    if given.out is not None:
        write(result, given.out)
    return int(bool(result.missed()))


if __name__ == "__main__":
    sys.exit(main())
