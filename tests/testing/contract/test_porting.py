"""The table of names: what it promises is there, and the page prints it."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from opdock.testing.contract.porting import TABLE, as_markdown, port_of

PAGE = Path(__file__).parents[3] / "docs" / "porting-from-vllm.md"


def test_the_page_prints_the_table() -> None:
    """Word for word."""
    assert as_markdown() in PAGE.read_text()


@pytest.mark.parametrize("name", sorted({p.ours for p in TABLE if p.ours.startswith("opdock.")}))
def test_what_the_table_names_exists(name: str) -> None:
    """Each name of opdock can be imported."""
    module, _, attribute = name.rpartition(".")
    if name == "opdock.current_platform":  # looking at it decides the platform
        assert attribute in importlib.import_module(module).__all__
        return
    try:
        importlib.import_module(name)
    except ImportError:
        assert hasattr(importlib.import_module(module), attribute)


def test_the_longest_row_wins() -> None:
    """A class has its own row, its module another one."""
    assert port_of("vllm.platforms.Platform").ours == "opdock.Platform"
    assert port_of("vllm.model_executor.layers.layernorm.RMSNorm").ours == "opdock.nn.layers.RMSNorm"
    assert port_of("vllm.model_executor.layers.layernorm.Other").ours == ""
    assert port_of("vllm.v1.worker.worker_base.WorkerBase").shown == "no counterpart: the engine's"
    assert port_of("vllm").theirs == "vllm"


def test_no_row_is_there_twice() -> None:
    """One row for a name."""
    assert len({p.theirs for p in TABLE}) == len(TABLE)
