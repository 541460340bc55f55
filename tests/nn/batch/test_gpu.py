"""Batches on a GPU: steps op by op and captured give each request what it gets alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import opdock
from opdock import context
from opdock.nn.batch import Batch, ReplayedGeneration
from opdock.nn.batch.capture import why_no_graphs
from opdock.nn.generation import SamplingParams, generate
from opdock.nn.loading import build_model
from opdock.nn.models import ModelConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and there is none"),
    # Inductor says so of float32, whose bits are what these tests are about
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),
]
CONFIG = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=500,
    hidden_size=128,
    intermediate_size=256,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    rms_norm_eps=1e-5,
    max_position=640,
)


@pytest.fixture(scope="module", params=[0, 3], ids=["eager", "compiled"])
def model(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A small random model in float32 on the GPU, as it is and compiled."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    config = opdock.OpdockConfig(opdock.CompilationConfig(mode=request.param))
    with opdock.set_current_config(config):
        built = build_model(CONFIG, torch.float32, torch.device("cuda"))
        torch.manual_seed(1)
        for parameter in built.parameters():
            torch.nn.init.normal_(parameter, 0.0 if parameter.dim() > 1 else 1.0, 0.2)
        opdock.compile.compile_model(built)
        yield built
    torch.backends.cuda.matmul.allow_tf32 = before


def _alone(model: Any, prompt: list[int], count: int) -> list[int]:
    """Return the tokens of a text over the contiguous cache, op by op."""
    compiled, model._compiled_call_impl = model._compiled_call_impl, None
    try:
        return list(generate(model, prompt, max_tokens=count))
    finally:
        model._compiled_call_impl = compiled


@pytest.mark.parametrize("graphs", [False, True])
def test_each_request_gets_what_it_gets_alone(model: Any, graphs: bool) -> None:
    """Prompts in parts, joins between steps, batches that shrink, blocks that are used again."""
    if graphs and why_no_graphs(torch.device("cuda")):
        pytest.skip(f"no graphs here: {context.platform().device_name}")
    chance = random.Random(4)
    prompts = [[chance.randrange(3, 500) for _ in range(chance.choice((1, 15, 16, 17, 40, 130)))] for _ in range(14)]
    with Batch(model, max_requests=5, max_len=192, num_blocks=45, max_step_tokens=70, graphs=graphs) as batch:
        made = batch.generate(prompts, max_tokens=30)
        assert batch.generate(prompts[::-1], max_tokens=30) == made[::-1]
    assert made == [_alone(model, p, 30) for p in prompts]


def test_tokens_that_are_drawn_repeat_with_their_seed(model: Any) -> None:
    """Also where the next step is launched before they are read."""
    if why_no_graphs(torch.device("cuda")):
        pytest.skip(f"no graphs here: {context.platform().device_name}")
    params = SamplingParams(temperature=1.0, seed=5)
    first, second = (list(ReplayedGeneration(model, [5, 6, 7], params, max_tokens=40)) for _ in range(2))
    assert first == second and len(set(first)) > 10
