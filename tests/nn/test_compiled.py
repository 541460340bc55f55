"""Whole models, compiled: the same numbers as eager code, one graph for each of few shapes, no clones."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor.utils import fresh_cache

import opdock
from opdock.compile import observing
from opdock.errors import CheckpointError
from opdock.nn.compiled import explain_compiled
from opdock.nn.generation import load_model

KINDS = ("llama", "llama_tied", "llama_biased", "llama3_rope", "linear_rope", "qwen2", "qwen3", "one_head_group")
LENGTHS = (1, 2, 7, 64, 300)
MOST_GRAPHS = 5  # prompt and step, each once of fixed sizes and once of any; a prompt of one token


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def _load(folder: Path) -> Any:
    config = opdock.OpdockConfig(opdock.CompilationConfig(custom_ops=["none"]))  # as compiled mode has it
    with opdock.set_current_config(config):
        return load_model(folder, dtype=torch.float32).model


def _logits(model: Any, run: Callable[..., Any], tokens: torch.Tensor, prompt: int) -> torch.Tensor:
    """Return the logits of a prompt in one step and of the rest token by token."""
    cache, positions = model.new_cache(len(tokens)), torch.arange(len(tokens))
    with torch.inference_mode():
        hidden = [run(tokens[:prompt], positions[:prompt], cache)]
        hidden += [run(tokens[i : i + 1], positions[i : i + 1], cache) for i in range(prompt, len(tokens))]
        return model.compute_logits(torch.cat(hidden))


@pytest.mark.parametrize(
    ("kind", "dynamic"),
    [*((kind, None) for kind in KINDS), ("llama", True), ("qwen3", True)],
    ids=lambda v: v if isinstance(v, str) else ("automatic" if v is None else "dynamic"),
)
def test_every_kind_of_model_keeps_every_bit(
    checkpoints: Callable[[str], tuple[Path, Any]], kind: str, dynamic: bool | None
) -> None:
    """All passes, without Inductor: prompts of many lengths, and steps through the cache; no graph break."""
    model = _load(checkpoints(kind)[0])
    compiled = torch.compile(model, backend="opdock_eager", fullgraph=True, dynamic=dynamic)
    with observing() as reports:
        for length in LENGTHS if kind in ("llama", "qwen3") else (2, 64):
            tokens = torch.randint(3, 320, (length + 3,))
            want, got = (_logits(model, run, tokens, length) for run in (model, compiled))
            assert torch.equal(want, got)
    assert len(reports) == torch._dynamo.utils.counters["stats"]["unique_graphs"] <= MOST_GRAPHS
    assert all(report.clones_left == 0 for report in reports)
    assert all(len(report.selected_impls["fused_add_rms_norm"]) == 6 for report in reports)


@pytest.mark.compiler
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler (g++), which is not here")
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_compiled_models_are_as_near_to_float64_as_eager_ones(
    checkpoints: Callable[[str], tuple[Path, Any]], kind: str
) -> None:
    model, exact = _load(checkpoints(kind)[0]), _load(checkpoints(kind)[0]).double()
    tokens = torch.randint(3, 320, (20,))
    with fresh_cache():
        compiled = torch.compile(model, backend="opdock", fullgraph=True)
        got, want = _logits(model, compiled, tokens, 17), _logits(model, model, tokens, 17)
    reference = _logits(exact, exact, tokens, 17)
    error, eager_error = ((a.double() - reference).abs().max() for a in (got, want))
    assert error <= 1.5 * eager_error + 1e-6
    assert torch.equal(got.argmax(-1), want.argmax(-1))


def test_what_compiled_mode_does_is_told_without_weights(checkpoints: Callable[[str], tuple[Path, Any]]) -> None:
    folder, _ = checkpoints("qwen3")
    with opdock.set_current_config(opdock.OpdockConfig(opdock.CompilationConfig(mode=3))):
        report = explain_compiled(folder, num_tokens=4)
    counts = {op: len(nodes) for op, nodes in report.selected_impls.items()}
    # a norm before each part, of the heads of q and k, and at the end
    assert counts == {"rms_norm": 7, "fused_add_rms_norm": 6, "rotary_embedding": 3, "silu_and_mul": 3}
    assert report.clones_left == 0
    assert report.to_dict()["schema"] == "opdock.compiled/1"


def test_a_missing_model_is_refused_before_anything_is_traced(tmp_path: Path) -> None:
    config = opdock.OpdockConfig(opdock.CompilationConfig(mode=3))
    with opdock.set_current_config(config), pytest.raises(CheckpointError, match="missing"):
        explain_compiled(tmp_path / "missing")
