"""What the tests of batch invariance share: random models, and the logits of every step of a batch."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from opdock.nn.batch import Batch
from opdock.nn.loading import build_model
from opdock.nn.models import ModelConfig

SMALL = ModelConfig(
    architecture="LlamaForCausalLM", vocab_size=300, hidden_size=64, intermediate_size=160, num_layers=3, num_heads=4,
    num_kv_heads=2, head_dim=16, rms_norm_eps=1e-5, max_position=3000,
)  # fmt: skip
SMOLLM2 = ModelConfig(
    architecture="LlamaForCausalLM", vocab_size=4096, hidden_size=576, intermediate_size=1536, num_layers=2,
    num_heads=9, num_kv_heads=3, head_dim=64, rms_norm_eps=1e-5, max_position=3000, tie_word_embeddings=True,
)  # fmt: skip
"""Two layers of its sizes, with fewer token ids."""
NORMED = dataclasses.replace(
    SMALL, architecture="Qwen3ForCausalLM", qk_norm=True, head_dim=32, mlp_bias=True, o_bias=True, qkv_bias=True
)
"""A norm of each head, which sees rows that lie apart; biases."""


def random_model(config: ModelConfig, dtype: torch.dtype, device: str = "cpu") -> Any:
    """Return a model with random weights."""
    model = build_model(config, dtype, torch.device(device))
    torch.manual_seed(1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.0 if parameter.dim() > 1 else 1.0, 0.08)
    return model


def prompts_of(lengths: Sequence[int], vocab: int = 300) -> list[list[int]]:
    """Return random prompts of these lengths."""
    chance = random.Random(5)
    return [[chance.randrange(vocab) for _ in range(length)] for length in lengths]


def batch_logits(model: Any, prompts: Sequence[Sequence[int]], *, count: int = 3, **options: Any) -> list[torch.Tensor]:
    """Return the logits of each request, (count, vocab): of its prompt's end and of the tokens that follow greedily."""
    found: dict[int, list[torch.Tensor]] = {}
    with Batch(model, **{"max_requests": 8, "max_len": 128, **options}) as batch:
        choose = batch._runner._choose

        def keep(parts: Any, tokens: torch.Tensor, logits: torch.Tensor, *, replayed: bool) -> Any:
            for row, part in enumerate(parts):
                found.setdefault(part.request.id, []).append(logits[row].clone())
            return choose(parts, tokens, logits, replayed=replayed)

        batch._runner._choose = keep  # type: ignore[method-assign]
        batch.generate(prompts, max_tokens=count)
    return [torch.stack(found[request]) for request in sorted(found)]


def _run_again(batch: Batch, prompts: Sequence[list[int]], **options: Any) -> tuple[list[list[int | None]], int]:
    """Return the tokens of prompts, with each step that is short of memory run again, and how many were."""
    made: dict[int, list[int | None]] = {batch.add(p, **options): [] for p in prompts}
    failures = 0
    while batch.running:
        try:
            outputs = batch.step()
        except MemoryError:
            failures += 1
            continue
        for output in outputs:
            made[output.request].append(output.token)
    return list(made.values()), failures


def same(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> bool:
    """Return whether all bits are equal."""
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.fixture(scope="session")
def invariant() -> SimpleNamespace:
    """The functions and configurations above."""
    return SimpleNamespace(
        small=SMALL,
        smollm2=SMOLLM2,
        normed=NORMED,
        model=random_model,
        prompts=prompts_of,
        logits=batch_logits,
        same=same,
    )


@pytest.fixture
def run_again() -> Callable[..., tuple[list[list[int | None]], int]]:
    """Return what runs prompts in a batch, and a step that is short of memory again."""
    return _run_again
