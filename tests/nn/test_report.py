"""What served each op."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from opdock.nn.generation import generate, load_model
from opdock.nn.report import Row, recording


@pytest.mark.usefixtures("config")
def test_every_op_class_and_ir_op_of_a_run_is_counted(folder: Path) -> None:
    """Three layers, four steps."""
    model = load_model(folder, dtype=torch.float32).model
    with recording(model) as record:
        list(generate(model, [5, 6, 7], max_tokens=4))
    rows = {(row.level, row.op): row for row in record.rows()}
    steps, layers = 4, 3
    norm = rows["layer", "rms_norm"]
    assert norm.calls == steps * (2 * layers + 1)
    assert norm.served_by == "opdock.nn.layers.layernorm.RMSNorm" and norm.method.startswith("forward_")
    assert rows["layer", "qkv_parallel_linear"] == Row(
        "layer", "qkv_parallel_linear", "opdock.nn.layers.linear.QKVParallelLinear", "forward", steps * layers
    )
    assert rows["layer", "parallel_lm_head"].calls == rows["layer", "logits_processor"].calls == steps
    assert rows["ir", "rms_norm"] == Row("ir", "rms_norm", "native", "", steps)
    assert rows["ir", "fused_add_rms_norm"].calls == steps * 2 * layers
    assert rows["ir", "rotary_embedding"].calls == rows["ir", "silu_and_mul"].calls == steps * layers


@pytest.mark.usefixtures("config")
def test_nothing_is_counted_after_the_block(folder: Path) -> None:
    """The hooks are gone, also after an error."""
    model = load_model(folder, dtype=torch.float32).model
    with pytest.raises(ZeroDivisionError), recording(model) as record:
        raise ZeroDivisionError
    list(generate(model, [5], max_tokens=2))
    assert record.rows() == []
    assert not any(module._forward_pre_hooks for module in model.modules())
