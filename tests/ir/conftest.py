"""Every registration of a test is taken back, and priorities are the defaults again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch

from opdock import ir, journal


class _Done(Exception):
    """Ends the transaction of a test by rolling it back."""


@pytest.fixture(autouse=True)
def _undo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep tests apart, and their numbers repeatable."""
    monkeypatch.delenv("VLLM_BATCH_INVARIANT", raising=False)
    monkeypatch.delenv("OPDOCK_STRICT", raising=False)
    torch.manual_seed(0)
    before = {name: op.default_names for name, op in ir.registry.items()}
    with contextlib.suppress(_Done), journal.transaction():
        yield
        for name, names in before.items():
            ir.registry[name]._put_default(names)
        raise _Done
