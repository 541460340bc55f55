"""Experts quantised after loading, loaded again, and methods that are refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from opdock.errors import UnsupportedError
from opdock.nn.loading import build_model
from opdock.nn.models.checkpoint import checkpoint_plan, load_weights
from opdock.nn.models.loader_hf import HFCheckpoint
from opdock.nn.moe import FusedMoE
from opdock.nn.moe.quantised import experts_method
from opdock.nn.quantization.fp8 import Fp8Config
from opdock.nn.quantization.reloading import finish_loading, start_loading
from opdock.nn.quantization.rounding import quantise_weight


def quantised(folder: Path) -> tuple[Any, Callable[[], None]]:
    """Return our model with fp8 weights, and what loads it again."""
    checkpoint = HFCheckpoint(folder)
    config = dataclasses.replace(checkpoint.config, quant_config=Fp8Config())
    model = build_model(config, torch.float32, torch.device("cpu"))

    def load() -> None:
        start_loading(model)
        load_weights(model, checkpoint_plan(config), HFCheckpoint(folder))
        finish_loading(model)

    load()
    return model, load


@pytest.mark.parametrize("kind", ["mixtral", "qwen2_moe", "deepseek_v3"])
def test_rows_become_8_bit_floats_after_loading_and_the_model_runs(
    kind: str, config: Any, mixtures: Callable[[str], tuple[Path, Any]], load: Callable[..., Any]
) -> None:
    """Each row is that of the checkpoint, rounded; a layer's output is within 8 % of that of the floats."""
    folder, _ = mixtures(kind)
    (model, _), plain = quantised(folder), load(folder)
    layers = [[m for m in one.modules() if isinstance(m, FusedMoE)] for one in (model, plain)]
    for mine, theirs in zip(*layers, strict=True):
        assert (mine.served_by, theirs.served_by) == ("native", "torch_grouped")
        for name in ("w13_weight", "w2_weight"):
            want, scales = quantise_weight(getattr(theirs, name)[-1], torch.float8_e4m3fn, "channel")
            assert torch.equal(getattr(mine, name)[-1].float(), want.float())
            assert torch.equal(getattr(mine, f"{name}_scale")[-1], scales)
        x, logits = torch.randn(20, 64), torch.randn(20, mine.routing.num_experts)
        mine.shared_experts = theirs.shared_experts = None
        error = (mine(x, logits) - theirs(x, logits)).norm() / theirs(x, logits).norm()
        assert 1e-3 < error < 0.08
    with torch.inference_mode():
        assert model(torch.arange(5, 15), torch.arange(10)).isfinite().all()


def test_loading_again_gives_the_same_weights_in_the_same_memory(
    config: Any, mixtures: Callable[[str], tuple[Path, Any]]
) -> None:
    model, load = quantised(mixtures("mixtral")[0])
    layers = [m for m in model.modules() if isinstance(m, FusedMoE)]
    places = [p.data_ptr() for layer in layers for p in layer.parameters()]
    ids, positions = torch.arange(5, 15), torch.arange(10)
    with torch.inference_mode():
        want = model(ids, positions)
        load()
        assert torch.equal(model(ids, positions), want)
    assert [p.data_ptr() for layer in layers for p in layer.parameters()] == places


def test_a_method_that_experts_cannot_have_is_refused_with_the_layers_name() -> None:
    with pytest.raises(UnsupportedError, match="Experts that are quantised with 'fp8'") as caught:
        experts_method(Fp8Config(is_checkpoint_fp8_serialized=True), "model.layers.7.mlp")
    assert "model.layers.7.mlp" in str(caught.value)
