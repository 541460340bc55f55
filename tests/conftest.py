"""What tests of several folders share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest


class _Done(Exception):
    """Ends the transaction of a test by rolling it back."""


@pytest.fixture
def taken_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take back what a test registers, and set the priorities of IR ops again; its random numbers are repeatable."""
    import torch

    from opdock import ir, journal

    monkeypatch.delenv("VLLM_BATCH_INVARIANT", raising=False)
    monkeypatch.delenv("OPDOCK_STRICT", raising=False)
    torch.manual_seed(0)
    before = {name: op.default_names for name, op in ir.registry.items()}
    with contextlib.suppress(_Done), journal.transaction():
        yield
        for name, names in before.items():
            ir.registry[name]._put_default(names)
        raise _Done
