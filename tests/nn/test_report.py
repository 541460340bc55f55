"""What served each op."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import opdock
from opdock import ir, journal
from opdock.nn.generation import generate, load_model
from opdock.nn.layers import RowParallelLinear
from opdock.nn.report import Row, recording


@pytest.fixture
def undo() -> Iterator[None]:
    """Take back what the test registers."""
    before = set(map(id, journal.entries()))
    yield
    for entry in reversed(journal.entries()):
        if id(entry) not in before:
            entry.undo()


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


@pytest.mark.usefixtures("undo")
def test_a_replaced_layer_and_an_added_provider_are_named(folder: Path) -> None:
    """As an out-of-tree package registers them, through the layers of a whole model."""

    @RowParallelLinear.register_oot
    class VendorLinear(RowParallelLinear):
        pass

    @ir.ops.silu_and_mul.register_impl("vendor")
    def vendor(x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up

    with opdock.set_current_config(), ir.ops.silu_and_mul.set_priority(["vendor"]):
        model = load_model(folder, dtype=torch.float32).model
        with recording(model) as record:
            list(generate(model, [5], max_tokens=2))
    rows = {(row.level, row.op): row for row in record.rows()}
    assert rows["layer", "row_parallel_linear"].served_by.endswith("VendorLinear")
    assert rows["layer", "row_parallel_linear"].calls == 2 * 2 * 3
    assert rows["ir", "silu_and_mul"].served_by == "vendor"
