"""Time greedy generation against transformers: same weights, dtype, threads, prompts and number of tokens.

    python benchmarks/generate.py [--quick] [--threads N] [--dtype NAME] [--out benchmarks/results]

Both models are loaded once and take turns, ours first in one round and second in the next, so that a noisy
machine disturbs both alike. A row gives the medians over the rounds: milliseconds until the first token, and
tokens per second over the whole call. Exit status 1 if ours is slower.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import hf  # noqa: F401 - first: transformers must not take a script of this folder for a package
import torch
import transformers
from parity import random_models
from record import Result, Row, write

import opdock
from opdock.nn.generation import generate, load_model
from opdock.nn.models.resolve import resolve_model

PROMPTS, NOT_SLOWER = (17, 512), 1.0


def time_ours(model: Any, tokens: list[int], count: int) -> tuple[float, float]:
    """Return (seconds to the first token, seconds in all)."""
    start = time.perf_counter()
    run = generate(model, tokens, max_tokens=count)
    next(run)
    first = time.perf_counter() - start
    for _ in run:
        pass
    return first, time.perf_counter() - start


class _Clock(transformers.generation.streamers.BaseStreamer):  # type: ignore[misc]
    """Notes when the first token comes; the prompt itself is put first."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def put(self, value: object) -> None:
        self.seen.append(time.perf_counter())

    def end(self) -> None:
        pass


def time_theirs(model: Any, tokens: list[int], count: int) -> tuple[float, float]:
    """Return the same for transformers' generate()."""
    ids, clock = torch.tensor([tokens]), _Clock()
    start = time.perf_counter()
    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=count,
        min_new_tokens=count,
        pad_token_id=0,
        streamer=clock,
    )
    return clock.seen[1] - start, time.perf_counter() - start


def compare(ours: Any, theirs: Any, prompt: int, count: int, rounds: int) -> dict[str, Any]:
    """Return the row for one prompt length."""
    made = torch.Generator().manual_seed(prompt)
    tokens = torch.randint(3, theirs.config.vocab_size, (prompt,), generator=made).tolist()
    sides: dict[str, Callable[[], tuple[float, float]]] = {
        "ours": lambda: time_ours(ours, tokens, count),
        "transformers": lambda: time_theirs(theirs, tokens, count),
    }
    found: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    for i in range(rounds + 1):
        for side in sorted(sides, reverse=bool(i % 2)):
            times = sides[side]()
            if i:  # the first round warms up
                found[side].append(times)
    row: dict[str, Any] = {"prompt": prompt, "tokens": count}
    for side, times in found.items():
        row[f"{side}_first_s"] = statistics.median(first for first, _ in times)
        row[f"{side}_tokens_per_s"] = count / statistics.median(total for _, total in times)
    ratios = [t[1] / o[1] for o, t in zip(found["ours"], found["transformers"], strict=True)]
    row["speedup"] = statistics.median(ratios)
    return row


def judge(row: dict[str, Any]) -> list[Row]:
    """Return the lines of the table for one prompt length."""
    prompt = f"{row['model']}, prompt of {row['prompt']}:"
    return [
        (f"{prompt} first token, ours", row["ours_first_s"] * 1e3, "ms", None, "<="),
        (f"{prompt} first token, transformers", row["transformers_first_s"] * 1e3, "ms", None, "<="),
        (f"{prompt} tokens per second, ours", row["ours_tokens_per_s"], "/s", None, ">="),
        (f"{prompt} tokens per second, transformers", row["transformers_tokens_per_s"], "/s", None, ">="),
        (f"{prompt} speed over transformers", row["speedup"], "x", NOT_SLOWER, ">="),
    ]


def _models(folder: Path, dtype: torch.dtype) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, our model, transformers' model) of the same weights."""
    path = resolve_model("smollm2")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=dtype)
    yield "SmolLM2", load_model(path, dtype=dtype).model, theirs.eval()
    _, saved, random = next(random_models(folder))
    yield "Llama", load_model(saved, dtype=dtype).model, random.to(dtype)


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few tokens and rounds; more noise")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--out", type=Path, help="folder for generate.json and generate.txt")
    given = parser.parse_args()
    tokens, rounds = (16, 3) if given.quick else (64, 7)
    torch.set_num_threads(given.threads)
    transformers.utils.logging.disable_progress_bar()
    dtype = getattr(torch, given.dtype)
    measured = []
    with tempfile.TemporaryDirectory() as folder, opdock.set_current_config(), torch.inference_mode():
        for name, ours, theirs in _models(Path(folder), dtype):
            measured += [{"model": name, **compare(ours, theirs, prompt, tokens, rounds)} for prompt in PROMPTS]
    rows = [line for row in measured for line in judge(row)]
    raw = {
        f"{key}, {row['model']}, prompt of {row['prompt']}": value
        for row in measured
        for key, value in row.items()
        if key not in ("model", "prompt")
    }
    conditions = (
        f"Greedy, {tokens} tokens, {given.dtype}, {given.threads} threads, medians of {rounds} interleaved rounds, "
        "the prompt's time included. SmolLM2-135M-Instruct comes from its GGUF file; the Llama has random weights."
    )
    result = Result("generate", conditions, ["torch", "transformers", "opdock"], rows, raw)
    print(result.conditions + "\n\n" + result.table())
    if given.out is not None:
        write(result, given.out)
    return int(bool(result.missed()))


if __name__ == "__main__":
    sys.exit(main())
