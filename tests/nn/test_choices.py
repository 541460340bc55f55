"""What the selectors would choose, for reports."""

from __future__ import annotations

import json

import pytest
import torch

import opdock
from opdock.cli import main
from opdock.nn.choices import AXES, selector_rows


def test_each_axis_has_one_chosen_backend_for_each_layer_and_a_reason_for_all_others() -> None:
    with opdock.set_current_config():
        rows = selector_rows()
    assert {row.axis for row in rows} == set(AXES)
    for layer in {(row.axis, row.layer) for row in rows}:
        mine = [row for row in rows if (row.axis, row.layer) == layer]
        assert sum(row.chosen for row in mine) == 1, layer
        assert all(row.chosen != bool(row.reason) for row in mine), layer


def test_batch_invariance_changes_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    with opdock.set_current_config():
        rows = selector_rows("fused_moe", dtype=torch.float32)
    assert [row.backend for row in rows if row.chosen] == ["native"]
    refused = next(row for row in rows if row.backend == "torch_grouped")
    assert "VLLM_BATCH_INVARIANT=1" in refused.reason


def test_a_dtype_that_nothing_serves_is_a_row_and_no_error() -> None:
    with opdock.set_current_config():
        rows = selector_rows("linear", dtype=torch.int32)
    assert rows
    assert all(row.chosen or row.reason for row in rows)


@pytest.mark.parametrize(
    ("op", "axes"),
    [
        ("attention", {"attention"}),
        ("replicated_linear", {"linear"}),
        ("fused_moe", {"fused_moe"}),
        ("rms_norm", set()),
    ],
)
def test_explain_says_what_the_selector_of_one_op_chooses(
    op: str, axes: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", op, "--json"]) == 0
    assert {row["axis"] for row in json.loads(capsys.readouterr().out)["selectors"]} == axes
