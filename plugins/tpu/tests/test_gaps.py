"""opdock_tpu.gaps: names that torchax reads and torch has no more."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from opdock_tpu import gaps

if TYPE_CHECKING:
    import pytest


def test_the_overloads_that_files_name_are_found(tmp_path: Path) -> None:
    text = "x(torch.ops.aten.prod.dim_Dimname, torch.ops.aten.add, torch.ops.aten.add.Tensor)\n"
    (tmp_path / "a.py").write_text(text, encoding="utf-8")
    assert list(gaps.named(tmp_path)) == [("prod", "dim_Dimname"), ("add", "Tensor")]


def test_only_what_is_missing_gets_a_placeholder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "torchax"
    package.mkdir()
    text = "torch.ops.aten.prod.dim_Dimname torch.ops.aten.prod.default torch.ops.aten.none.default\n"
    (package / "__init__.py").write_text(text, encoding="utf-8")
    spec = SimpleNamespace(submodule_search_locations=[str(package)])
    monkeypatch.setattr("importlib.util.find_spec", lambda _: spec)
    real = object()
    aten: Any = SimpleNamespace(prod=SimpleNamespace(default=real))
    assert gaps.fill(aten) == ["prod.dim_Dimname"]
    assert aten.prod.default is real
    assert repr(aten.prod.dim_Dimname) == "<aten.prod.dim_Dimname, which this torch does not have>"
    assert gaps.fill(aten) == []
