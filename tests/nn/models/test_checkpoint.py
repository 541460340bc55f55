"""The plan of a checkpoint and the check of its header."""

from __future__ import annotations

import pytest

from opdock.errors import CheckpointError
from opdock.nn.models.checkpoint import Target, check_header, checkpoint_plan
from opdock.nn.models.config import ModelConfig

CONFIG = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=10,
    hidden_size=8,
    intermediate_size=12,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=2,
    rms_norm_eps=1e-6,
    max_position=16,
)


def test_the_plan_names_every_tensor_and_its_place() -> None:
    """Nine for each layer, three around them."""
    plan = checkpoint_plan(CONFIG)
    assert len(plan) == 2 * 9 + 3
    assert plan["model.layers.1.self_attn.k_proj.weight"] == Target(
        "model.layers.1.self_attn.qkv_proj.weight", (4, 8), "k"
    )
    assert plan["model.layers.0.mlp.up_proj.weight"] == Target("model.layers.0.mlp.gate_up_proj.weight", (12, 8), 1)


def test_all_faults_come_in_one_error() -> None:
    """Missing, unexpected and mis-shaped tensors together, long lists cut."""
    plan = checkpoint_plan(CONFIG)
    shapes = {name: target.shape for name, target in plan.items() if ".layers.1." not in name}
    shapes["model.norm.weight"] = (9,)
    shapes["model.layers.7.extra"] = (1,)
    with pytest.raises(CheckpointError) as caught:
        check_header(plan, shapes, CONFIG, "folder")
    text = str(caught.value)
    assert "9 missing:" in text and "and 5 more" in text
    assert "1 unexpected:" in text and "model.layers.7.extra" in text
    assert "model.norm.weight: (9,) in the file, (8,) by the configuration" in text
    assert "folder" in text and "Remedy:" in text


def test_names_from_the_file_cannot_write_to_the_terminal() -> None:
    """Control characters are shown, not sent."""
    plan = checkpoint_plan(CONFIG)
    shapes = {name: target.shape for name, target in plan.items()} | {"\x1b[2Jgone": (1,)}
    with pytest.raises(CheckpointError) as caught:
        check_header(plan, shapes, CONFIG, "folder")
    assert "\x1b" not in str(caught.value) and r"\x1b[2Jgone" in str(caught.value)


def test_computed_and_shared_tensors_may_be_there() -> None:
    """Older checkpoints hold the rotary frequencies, tied ones sometimes the head."""
    from dataclasses import replace

    tied = replace(CONFIG, tie_word_embeddings=True)
    plan = checkpoint_plan(tied)
    assert "lm_head.weight" not in plan
    shapes = {name: target.shape for name, target in plan.items()}
    shapes |= {"lm_head.weight": (10, 8), "model.layers.0.self_attn.rotary_emb.inv_freq": (1,)}
    check_header(plan, shapes, tied, "folder")
