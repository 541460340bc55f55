"""Compare compiled models with eager ones: logits against float64, greedy tokens, graphs over many lengths.

    python benchmarks/parity_compiled.py [--quick] [--threads N] [--out benchmarks/results]

Errors: the difference of float32 logits from a float64 run, as a multiple of the eager model's own (at most 1.5), over
prompts of 1, 2, 7, 64 and 300 tokens and 4 steps of decoding each: the root mean square over all of them, and the
largest difference of the worst prompt. Sizes become symbols when they change (`automatic`), or are symbols from the
start (`dynamic`). Graphs: how many were compiled for all of that; a graph break is an error. Tokens: how many of the
greedy steps on 5 prompts agree. Exit status 1 if a limit is missed.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from parity import exact, models, our_logits, their_logits
from record import Result, Row, write

import opdock
from opdock.compile import observing
from opdock.nn.generation import generate

LENGTHS, DECODE, STEPS, LIMIT, MOST_GRAPHS = (1, 2, 7, 64, 300), 4, 32, 1.5, 5
CONDITIONS = "Float32 on the CPU, against transformers' model in float64, its norms too."


def compare(model: Any, double: Any, *, dynamic: bool | None) -> dict[str, float]:
    """Return the worst ratio of errors, and what was compiled."""
    torch._dynamo.reset()
    run = torch.compile(model, backend="opdock", fullgraph=True, dynamic=dynamic)
    vocab, made = double.config.vocab_size, torch.Generator().manual_seed(3)
    compiled: list[torch.Tensor] = []
    eager: list[torch.Tensor] = []
    largest = 0.0
    with observing() as reports:
        for prompt in LENGTHS:
            tokens = torch.randint(3, vocab, (prompt + DECODE,), generator=made).tolist()
            reference = their_logits(double, tokens, len(tokens))
            for each, errors in ((run, compiled), (model, eager)):
                errors.append((our_logits(model, tokens, prompt, each) - reference).flatten())
            largest = max(largest, float(compiled[-1].abs().max() / eager[-1].abs().max()))
    ours, theirs = (float(torch.cat(errors).pow(2).mean().sqrt()) for errors in (compiled, eager))
    return {
        "ratio": ours / theirs,
        "largest": largest,
        "graphs": float(len(reports)),
        "clones": float(sum(r.clones_left for r in reports)),
    }


def agreeing(model: Any, prompts: list[list[int]], steps: int) -> float:
    """Return how many greedy tokens agree before the first that differs, over all prompts."""
    torch._dynamo.reset()
    want = [list(generate(model, tokens, max_tokens=steps)) for tokens in prompts]
    model.compile(backend="opdock", fullgraph=True)
    got = [list(generate(model, tokens, max_tokens=steps)) for tokens in prompts]
    return float(
        sum(
            next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))
            for a, b in zip(want, got, strict=True)
        )
    )


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the first model alone")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, help="folder for parity_compiled.json and parity_compiled.txt")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    rows: list[Row] = []
    raw: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, opdock.set_current_config(), torch.inference_mode():
        for name, model, theirs, prompts in models(Path(folder)):
            for label, dynamic in (("automatic", None), ("dynamic", True)):
                found = compare(model, exact(theirs), dynamic=dynamic)
                raw |= {f"{name}, {label}: {key}": value for key, value in found.items()}
                rows += [
                    (f"{name}, {label}: error / eager's", found["ratio"], "x", LIMIT, "<="),
                    (f"{name}, {label}: largest error of one prompt / eager's", found["largest"], "x", LIMIT, "<="),
                    (f"{name}, {label}: graphs for {len(LENGTHS)} lengths", found["graphs"], "", MOST_GRAPHS, "<="),
                    (f"{name}, {label}: clones left", found["clones"], "", 0.0, "<="),
                ]
            steps = STEPS * len(prompts)
            rows.append((f"{name}: equal greedy tokens", agreeing(model, prompts, STEPS), "", steps, ">="))
            if given.quick:
                break
    result = Result("parity_compiled", CONDITIONS, ("opdock", "torch", "transformers"), rows, raw)
    print(result.table())
    if given.out is not None:
        write(result, given.out)
    return int(bool(result.missed()))


if __name__ == "__main__":
    sys.exit(main())
