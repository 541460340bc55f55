"""Replaced experts and latent attention that are wrong in one way fail the kit, and right ones pass."""

from __future__ import annotations

import contextlib
from pathlib import Path

import mixture_package
import package
import pytest

from opdock.testing.session import Session
from opdock.testing.settings import Settings


def _failures(
    folder: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch, ops: set[str], *, only: str = "layer."
) -> dict[str, str]:
    """Return the message of each check of these layers that fails; at least their values are checked."""
    monkeypatch.syspath_prepend(str(package.write(folder / "site", files)))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found, passed = {}, set()
    with contextlib.closing(Session(Settings(package.NAME))) as session:
        for check, subject in session.items():
            if check.name.startswith(only) and subject in ops:
                result = session.run(check.name, subject)
                if result.status == "failed":
                    found[result.id] = result.message
                passed |= {result.id} if result.status == "passed" else set()
    assert {*found, *passed} >= {f"layer.values[{op}]" for op in ops}
    return found


@pytest.mark.parametrize("fault", list(mixture_package.FAULTS))
def test_a_wrong_layer_is_found_by_its_values(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In words that name the class and the call."""
    op = mixture_package.FAULTS[fault][0]
    found = _failures(tmp_path, mixture_package.files_of(fault), monkeypatch, {op}, only="layer.values")
    assert list(found) == [f"layer.values[{op}]"], found
    message = found[f"layer.values[{op}]"]
    assert "of the layer is wrong" in message or "writes argument" in message
    assert "opdock_good.layers.Good" in message


def test_right_layers_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a case would fail for another reason than its own."""
    ops = {mixture_package.MOE, mixture_package.LATENT}
    assert _failures(tmp_path, mixture_package.FILES, monkeypatch, ops) == {}
