"""Batches of a compiled model: the same tokens, and few graphs however many tokens a step has."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor.utils import fresh_cache

import opdock
from opdock.nn.batch import Batch
from opdock.nn.generation import generate, load_model

MOST_GRAPHS = 2  # a step of one token, and steps of any other number


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    "backend",
    [
        "opdock_eager",
        pytest.param(
            "opdock",
            marks=[
                pytest.mark.compiler,
                pytest.mark.slow,
                pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler (g++), which is not here"),
            ],
        ),
    ],
)
def test_a_compiled_model_serves_every_step(checkpoints: Callable[[str], tuple[Path, Any]], backend: str) -> None:
    """Prompts, parts of prompts beside decodes, and batches that shrink to one."""
    folder, _ = checkpoints("llama")
    chance = random.Random(2)
    prompts = [[chance.randrange(3, 320) for _ in range(length)] for length in (1, 5, 16, 33, 2)]
    with opdock.set_current_config():
        plain = load_model(folder, dtype=torch.float32).model
    expected = [list(generate(plain, p, max_tokens=4 + i)) for i, p in enumerate(prompts)]
    config = opdock.OpdockConfig(opdock.CompilationConfig(mode=3, backend=backend))
    with fresh_cache(), opdock.set_current_config(config):
        batch = Batch(load_model(folder, dtype=torch.float32).model, max_requests=5, max_len=64, max_step_tokens=20)
        ids = [batch.add(p, max_tokens=4 + i) for i, p in enumerate(prompts)]
        made: dict[int, list[int | None]] = {i: [] for i in ids}
        while batch.running:
            for output in batch.step():
                made[output.request].append(output.token)
        batch.close()
    assert list(made.values()) == expected
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= MOST_GRAPHS
