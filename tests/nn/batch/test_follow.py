"""The priorities of IR ops follow ``VLLM_BATCH_INVARIANT`` as it stands when a text begins."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from opdock import env, ir
from opdock.nn.generation import generate


@pytest.mark.usefixtures("taken_back", "config")
def test_ops_follow_the_variable_when_a_text_begins_with_or_without_made_inputs(
    invariant: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An op of a package has no generator of inputs; nothing is said of ops that do not run."""

    def t_follows(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    op = ir.register_op(t_follows)

    @op.register_impl("t_keeps", batch_invariant=True)
    def keeps(x: torch.Tensor) -> torch.Tensor:
        return x + 2

    @op.register_impl("t_breaks")
    def breaks(x: torch.Tensor) -> torch.Tensor:
        return x + 3

    op.set_default(["t_breaks", "t_keeps"])
    model = invariant.model(invariant.small, torch.float32)
    assert op(torch.zeros(())) == 3
    monkeypatch.setenv(env.VLLM_BATCH_INVARIANT, "1")
    with caplog.at_level(logging.WARNING, "opdock"):
        generate(model, [1, 2])
    assert op(torch.zeros(())) == 2 and not caplog.text
