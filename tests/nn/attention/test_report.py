"""What reports say of attention backends."""

from __future__ import annotations

import pytest
import torch

from opdock.nn.attention.report import attention_rows

pytestmark = pytest.mark.usefixtures("config")


def test_each_backend_has_a_row_with_its_reasons() -> None:
    rows = {row.backend: row for row in attention_rows(dtype=torch.float32, has_sink=True)}
    assert rows["NATIVE"].verdict == "chosen"
    assert rows["SDPA"].verdict == "does not fit"
    assert rows["SDPA"].reasons == ("attention sinks not supported",)
    assert rows["SDPA"].source.endswith("sdpa:SdpaAttentionBackend")
    rows = {row.backend: row for row in attention_rows()}
    assert (rows["SDPA"].verdict, rows["NATIVE"].verdict) == ("chosen", "fits")
