"""Time batches on the GPU against transformers: same weights, dtype, prompts and modes.

    python benchmarks/generate_gpu.py [--model FILE | --random] [--parts text] [--quick] [--out benchmarks/results]

Text first: greedy tokens of both in float32 (TF32 off), prompt by prompt, ours in one batch and in every mode. Then
speed in bfloat16, prompts of 128 tokens and 128 new ones, at each batch size and mode. Modes: ``eager``; ``compiled``
(transformers: static cache, its forward under torch.compile, mode "default"; ours: the opdock backend); ``graphs``
(transformers: static cache, mode "reduce-overhead"; ours: compiled, decode steps captured). The sides take turns;
each figure is the median over the rounds, the prompt's time included. Exit status 1 if ours is slower or differs.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from hf import CompileConfig, LlamaConfig, LlamaForCausalLM, logging
from parity import TEXTS
from record import Result, Row, write

import opdock
from opdock.nn.batch import Batch
from opdock.nn.loading import load_model
from opdock.nn.models.checkpoint import checkpoint_plan
from opdock.nn.models.resolve import resolve_model

MODES = ("eager", "compiled", "graphs")
COMPILE = {"compiled": "default", "graphs": "reduce-overhead"}
SMOLLM2 = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
}


def random_checkpoint(folder: Path, layers: int) -> Path:
    """Save a Llama of SmolLM2's size with random weights, and return its folder."""
    import tokenizers

    torch.manual_seed(1)
    settings = LlamaConfig(**{**SMOLLM2, "num_hidden_layers": layers, "initializer_range": 0.08})
    LlamaForCausalLM(settings).save_pretrained(folder)
    vocab = {f"<{i}>": i for i in range(settings.vocab_size)}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab)).save(str(folder / "tokenizer.json"))
    return folder


def their_model(ours: Any, device: str) -> Any:
    """Return transformers' Llama with the weights of one of our models, in float32."""
    config = ours.config
    settings = LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        rms_norm_eps=config.rms_norm_eps,
        max_position_embeddings=config.max_position,
        tie_word_embeddings=config.tie_word_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
    )
    parameters = dict(ours.model.named_parameters(remove_duplicate=False))
    rows: dict[str, int] = {}  # the joined matrices stand in the plan in the order in which they are joined
    state = {}
    for name, target in checkpoint_plan(config).items():
        start = rows.get(target.param, 0)
        rows[target.param] = start + target.shape[0]
        state[name] = parameters[target.param].data[start : start + target.shape[0]].clone()
    with torch.device(device):
        model = LlamaForCausalLM(settings)
    missing, unexpected = model.load_state_dict(state, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise ValueError(f"The weights do not fit: {missing}, {unexpected}")
    model.tie_weights()
    model.generation_config.eos_token_id = None
    return model.eval()


def config_of(mode: str) -> opdock.OpdockConfig:
    """Return the configuration of ours for a mode."""
    return opdock.OpdockConfig(opdock.CompilationConfig(mode=0 if mode.startswith("eager") else 3))


class Ours:
    """One of our models in one mode.

    Args:
        path: of the checkpoint.
        mode: see MODES, or ``eager graphs``: decode steps captured without compiling.
        dtype: of the model.
        device: where.
        most: the largest batch.
        length: the longest prompt and answer.
    """

    def __init__(self, path: Path, mode: str, dtype: torch.dtype, device: str, most: int, length: int) -> None:
        self.config = config_of(mode)
        with opdock.set_current_config(self.config):
            self.loaded = load_model(path, dtype=dtype, device=device)
            self.batch = Batch(self.loaded.model, max_requests=most, max_len=length, graphs="graphs" in mode)

    def __call__(self, prompts: list[list[int]], count: int) -> list[list[int]]:
        """Return the greedy tokens."""
        with opdock.set_current_config(self.config):
            return self.batch.generate(prompts, max_tokens=count)


class Theirs:
    """transformers' model in one mode; see Ours."""

    def __init__(self, model: Any, mode: str, dtype: torch.dtype) -> None:
        self.model, self.options = copy.deepcopy(model).to(dtype), {}
        if mode in COMPILE:
            compile_config = CompileConfig(mode=COMPILE[mode], fullgraph=False)
            self.options = {"cache_implementation": "static", "compile_config": compile_config}

    def __call__(self, prompts: list[list[int]], count: int) -> list[list[int]]:
        """Return the greedy tokens of prompts of one length."""
        ids = torch.tensor(prompts, device=self.model.device)
        with torch.inference_mode():
            out = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=count,
                min_new_tokens=count,
                pad_token_id=0,
                **self.options,
            )
        return out[:, ids.shape[1] :].tolist()  # type: ignore[no-any-return]


def same_text(path: Path, modes: list[str], device: str, count: int, base: Any) -> tuple[list[Row], dict[str, float]]:
    """Return the rows that say how many greedy tokens agree in float32, before the first that differs."""
    rows: list[Row] = []
    raw: dict[str, float] = {}
    theirs = Theirs(base, "eager", torch.float32)
    expected: list[list[int]] = []
    prompts: list[list[int]] = []
    for mode in modes:
        ours = Ours(path, mode, torch.float32, device, len(TEXTS), 256)
        if not prompts:
            prompts = [ours.loaded.tokenizer.encode(text) for text in TEXTS] if path.is_file() else _prompts(5, 19)
            expected = [theirs([p], count)[0] for p in prompts]
        found = ours(prompts, count)
        for number, (mine, other) in enumerate(zip(found, expected, strict=True)):
            agree = next((i for i, (a, b) in enumerate(zip(mine, other, strict=True)) if a != b), count)
            raw[f"{mode}, prompt {number}: tokens that agree"] = agree
        worst = min(raw[f"{mode}, prompt {n}: tokens that agree"] for n in range(len(prompts)))
        what = f"float32, {mode}: tokens that agree, least of {len(prompts)} prompts"
        rows.append((what, float(worst), "", float(count), ">="))
        if path.is_file() and mode == modes[0]:
            print(repr(ours.loaded.tokenizer.decode(found[1])), flush=True)
        ours.batch.close()
    return rows, raw


def _prompts(batch: int, length: int) -> list[list[int]]:
    made = torch.Generator().manual_seed(batch)
    return torch.randint(3, 49000, (batch, length), generator=made).tolist()  # type: ignore[no-any-return]


def speed(
    path: Path, modes: list[str], device: str, base: Any, *, batches: list[int], prompt: int, count: int, rounds: int
) -> Iterator[tuple[list[Row], dict[str, float]]]:
    """Yield the rows of each mode: tokens per second of both and their ratio."""
    for mode in modes:
        theirs_mode = mode.removeprefix("eager ")
        ours = Ours(path, mode, torch.bfloat16, device, max(batches), prompt + count)
        sides: dict[str, Callable[[list[list[int]], int], Any]] = {
            "ours": ours,
            "transformers": Theirs(base, theirs_mode, torch.bfloat16),
        }
        for batch in batches:
            prompts = _prompts(batch, prompt)
            times: dict[str, list[float]] = {side: [] for side in sides}
            for i in range(rounds + 2):
                for side in sorted(sides, reverse=bool(i % 2)):
                    took = _timed(partial(sides[side], prompts, count), device)
                    if i > 1:  # two rounds warm up: compilation, and graphs that are recorded at the second call
                        times[side].append(took)
                    elif i == 0:
                        print(f"{mode}, batch {batch}, first call, {side}: {took:.1f} s", flush=True)
            yield _rows(f"bfloat16, {mode}, batch {batch}:", times, batch * count)
        ours.batch.close()


def _timed(run: Callable[[], Any], device: str) -> float:
    wait = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    wait()
    start = time.perf_counter()
    run()
    wait()
    return time.perf_counter() - start


def _rows(what: str, times: dict[str, list[float]], tokens: int) -> tuple[list[Row], dict[str, float]]:
    rates = {side: tokens / statistics.median(found) for side, found in times.items()}
    ratio = statistics.median(t / o for o, t in zip(times["ours"], times["transformers"], strict=True))
    rows: list[Row] = [(f"{what} tokens per second, {side}", rate, "/s", None, ">=") for side, rate in rates.items()]
    rows.append((f"{what} speed over transformers", ratio, "x", 1.0, ">="))
    for what_, figure, *_ in rows:
        print(f"{what_}: {figure:.2f}", flush=True)
    return rows, {f"{what} {side}, seconds": statistics.median(found) for side, found in times.items()}


def recorded(given: argparse.Namespace, base: Any, rounds: int, rows: list[Row], raw: dict[str, float]) -> Result:
    """Return the result so far, and write it: a run that is cut off leaves what it has measured."""
    where = torch.cuda.get_device_name() if given.device.startswith("cuda") else "the CPU"
    name = f"random weights, {given.layers} layers" if given.random else "SmolLM2-135M-Instruct from its GGUF file"
    conditions = (
        f"{name}, on {where}; prompts of {given.tokens} tokens and {given.tokens} new ones, medians of {rounds} "
        "interleaved rounds, the prompt's time included. transformers has the same weights, dequantised, and "
        f"its fastest attention here, {base.config._attn_implementation}."
    )
    name = "generate_gpu_text" if given.parts == "text" else given.record
    result = Result(name, conditions, ["torch", "triton", "transformers", "opdock", "opdock-cuda"], [*rows], {**raw})
    if given.out is not None and rows:
        write(result, given.out)
    return result


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="a GGUF file or a folder; SmolLM2's package without it")
    parser.add_argument("--random", action="store_true", help="random weights of SmolLM2's size")
    parser.add_argument("--layers", type=int, default=SMOLLM2["num_hidden_layers"], help="of the random model")
    parser.add_argument("--modes", default="eager,eager graphs,compiled,graphs")
    parser.add_argument("--text-modes", help="of the comparison of texts; as --modes without it")
    parser.add_argument("--parts", default="text,speed", help="one of the two, or both")
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--tokens", type=int, default=128, help="of prompts, and of answers")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="few rounds; more noise")
    parser.add_argument("--record", default="generate_gpu", metavar="NAME", help="of the two files; with --out")
    parser.add_argument("--out", type=Path, help="folder for NAME.json and NAME.txt")
    given = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch._dynamo.config.recompile_limit = 64  # one for each model and batch size
    logging.disable_progress_bar()
    rounds, modes = 3 if given.quick else 5, given.modes.split(",")
    with tempfile.TemporaryDirectory() as folder:
        if given.random:
            path = random_checkpoint(Path(folder), given.layers)
        else:
            path = resolve_model(given.model or "smollm2")
        with opdock.set_current_config():
            base = their_model(load_model(path, dtype=torch.float32, device=given.device), given.device)
        rows: list[Row] = []
        raw: dict[str, float] = {}
        if "text" in given.parts:
            rows, raw = same_text(path, (given.text_modes or given.modes).split(","), given.device, 64, base)
        for row in rows:
            print(row[0], row[1], flush=True)
        result = recorded(given, base, rounds, rows, raw)
        for found, more in speed(
            path,
            modes if "speed" in given.parts else [],
            given.device,
            base,
            batches=[int(n) for n in given.batches.split(",")],
            prompt=given.tokens,
            count=given.tokens,
            rounds=rounds,
        ):
            rows += found
            raw |= more
            result = recorded(given, base, rounds, rows, raw)
    print(result.conditions + "\n\n" + result.table())
    return int(bool(result.missed()))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
