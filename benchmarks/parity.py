"""Compare logits and greedy tokens with transformers, from the same weights, in float32.

    python benchmarks/parity.py [--quick] [--threads N] [--out benchmarks/results]

Errors: the largest difference of float32 logits from a float64 run, for prompts of 1, 17 and 512 tokens and 8
steps of decoding, as a multiple of transformers' own (at most 1.5). The float64 run is transformers' model in
float64 with the norms computed in float64 too; the last line is against its plain ``.double()``, whose norms
stay in float32. Tokens: how many of 64 greedy steps on 5 prompts agree. Exit status 1 if a limit is missed.
"""

from __future__ import annotations

import argparse
import copy
import inspect
import logging
import os
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from record import Result, Row, write

import opdock
from opdock.nn.generation import generate, load_model
from opdock.nn.models.resolve import resolve_model

PROMPTS, DECODE, STEPS, LIMIT = (1, 17, 512), 8, 64, 1.5
TEXTS = (
    "Once upon a time",
    "The capital of France is",
    "def fibonacci(n):",
    "In 1969, the first people walked on",
    "Ingredients: flour, sugar, butter.",
)
_COMMON = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.08,
}
RANDOM = {
    "Llama": {"tie_word_embeddings": False},
    "Qwen2": {"tie_word_embeddings": True},
    "Qwen3": {"head_dim": 64, "tie_word_embeddings": False},
}


def random_models(folder: Path) -> Iterator[tuple[str, Path, Any]]:
    """Yield (name, folder, transformers' model) with random weights, saved to disk."""
    for family, changes in RANDOM.items():
        torch.manual_seed(1)
        settings = getattr(transformers, f"{family}Config")(**{**_COMMON, **changes})
        model = getattr(transformers, f"{family}ForCausalLM")(settings).eval()
        for name, parameter in model.named_parameters():
            if name.endswith(("norm.weight", ".bias")):
                torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.2)
        where = folder / family
        model.save_pretrained(where)
        _write_tokenizer(where, settings.vocab_size)
        yield f"{family}, random weights", where, model


def _write_tokenizer(folder: Path, size: int) -> None:
    import tokenizers

    vocab = {f"<{i}>": i for i in range(size)}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab)).save(str(folder / "tokenizer.json"))


def exact(model: Any) -> Any:
    """Return the model in float64, its norms too."""

    def norm(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    double = copy.deepcopy(model).double()
    for module in double.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = types.MethodType(norm, module)
    return double


def our_logits(
    model: Any, tokens: list[int], prompt: int, run: Callable[..., torch.Tensor] | None = None
) -> torch.Tensor:
    """Return the logits at every position: the prompt in one step, the rest token by token; ``run`` compiles them."""
    cache, ids, positions = model.new_cache(len(tokens)), torch.tensor(tokens), torch.arange(len(tokens))
    run = model if run is None else run
    hidden = [run(ids[:prompt], positions[:prompt], cache)]
    hidden += [run(ids[i : i + 1], positions[i : i + 1], cache) for i in range(prompt, len(tokens))]
    logits: torch.Tensor = model.compute_logits(torch.cat(hidden)).double()
    return logits


def their_logits(model: Any, tokens: list[int], prompt: int) -> torch.Tensor:
    """Return the same from transformers."""
    ids = torch.tensor([tokens])
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    step = model(ids[:, :prompt], use_cache=True)
    logits = [step.logits[0]]
    for i in range(prompt, len(tokens)):
        step = model(ids[:, i : i + 1], **{name: step[name]}, use_cache=True)
        logits.append(step.logits[0])
    return torch.cat(logits).double()


def errors(name: str, ours: Any, theirs: Any, prompts: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """Yield one row for each prompt length."""
    doubles = {"exact": exact(theirs), "plain": copy.deepcopy(theirs).double()}
    for prompt in prompts:
        made = torch.Generator().manual_seed(prompt)
        tokens = torch.randint(3, theirs.config.vocab_size, (prompt + DECODE,), generator=made).tolist()
        row: dict[str, Any] = {"model": name, "prompt": prompt}
        mine, other = our_logits(ours, tokens, prompt), their_logits(theirs, tokens, prompt)
        for label, double in doubles.items():
            reference = their_logits(double, tokens, len(tokens))
            mine_error, other_error = (mine - reference).abs().max(), (other - reference).abs().max()
            if label == "exact":
                row |= {"ours": float(mine_error), "transformers": float(other_error)}
            row["ratio" if label == "exact" else "ratio_plain"] = float(mine_error / other_error)
        yield row


def greedy(name: str, ours: Any, theirs: Any, prompts: list[list[int]], steps: int) -> Iterator[dict[str, Any]]:
    """Yield one row for each prompt: how many tokens agree before the first that differs."""
    for tokens in prompts:
        found = list(generate(ours, tokens, max_tokens=steps))
        ids = torch.tensor([tokens])
        out = theirs.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=steps,
            eos_token_id=theirs.config.vocab_size,  # never comes
            pad_token_id=0,
        )
        expected = out[0, len(tokens) :].tolist()
        same = next((i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b), steps)
        yield {"model": name, "prompt": len(tokens), "agree": same, "of": steps}


def models(folder: Path) -> Iterator[tuple[str, Any, Any, list[list[int]]]]:
    """Yield (name, our model, transformers' model, prompts) of the same weights in float32."""
    for name, where, theirs in random_models(folder):
        made = torch.Generator().manual_seed(7)
        prompts = [torch.randint(3, 4096, (4 + 5 * i,), generator=made).tolist() for i in range(5)]
        yield name, load_model(where, dtype=torch.float32).model, theirs, prompts
    path = resolve_model("smollm2")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()
    loaded = load_model(path, dtype=torch.float32)
    yield "SmolLM2-135M, GGUF", loaded.model, theirs, [loaded.tokenizer.encode(text) for text in TEXTS]


def main() -> int:
    """Run the comparison; exit status 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="prompts of 1 and 17 tokens, 16 greedy steps")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, help="folder for parity.json and parity.txt")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    prompts, steps = (PROMPTS[:2], 16) if given.quick else (PROMPTS, STEPS)
    error_rows: list[dict[str, Any]] = []
    token_rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, opdock.set_current_config(), torch.inference_mode():
        for name, ours, theirs, texts in models(Path(folder)):
            error_rows += errors(name, ours, theirs, prompts)
            token_rows += greedy(name, ours, theirs, texts, steps)
    result = _result(error_rows, token_rows, given.threads)
    print(result.table())
    if given.out is not None:
        write(result, given.out)
    return int(bool(result.missed()))


def _result(error_rows: list[dict[str, Any]], token_rows: list[dict[str, Any]], threads: int) -> Result:
    rows: list[Row] = []
    raw: dict[str, float] = {}
    for row in error_rows:
        label = f"{row['model']}, prompt of {row['prompt']}"
        rows.append((f"{label}: error / transformers'", row["ratio"], "x", LIMIT, "<="))
        raw |= {f"{label}, {key}": row[key] for key in ("ours", "transformers", "ratio", "ratio_plain")}
    worst = max(row["ratio_plain"] for row in error_rows)
    rows.append(("largest, against the plain float64 model", worst, "x", LIMIT, "<="))
    for name in dict.fromkeys(row["model"] for row in token_rows):
        agree = [row for row in token_rows if row["model"] == name]
        equal, of = sum(row["agree"] for row in agree), sum(row["of"] for row in agree)
        rows.append((f"{name}: equal greedy tokens, {len(agree)} prompts", equal, "", of, ">="))
    conditions = (
        f"float32, {threads} threads; {DECODE} steps of decoding after each prompt. An error is the largest "
        "difference of a logit from a float64 run of transformers' model whose norms are float64 too."
    )
    return Result("parity", conditions, ["torch", "transformers", "opdock"], rows, raw)


if __name__ == "__main__":
    sys.exit(main())
