"""The generated parts of the documentation are what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


def _reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_pages", Path(__file__).with_name("reference.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = _reference()


@pytest.mark.parametrize("page", reference.pages(), ids=lambda p: p.name)
def test_a_page_says_what_the_code_says(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == reference.renewed(text), "run `python tests/docs/reference.py`"


def test_every_part_is_on_a_page() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in reference.pages())
    assert all(f"<!-- generated: {name} -->" in text for name in reference.BLOCKS)


def test_each_public_hook_has_a_row() -> None:
    rows = "\n".join([*reference.methods(), *reference.engine()])
    for name in ("import_kernels", "get_default_ir_op_priority", "check_and_update_config", "set_device"):
        assert f"`{name}(" in rows
