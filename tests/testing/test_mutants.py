"""Faults seeded into a correct package: all of them apply, and the conformance kit finds those that are tried here.

``benchmarks/kit_mutants.py`` runs the kit over every one.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import mutants
import package

from opdock.testing.session import Session
from opdock.testing.settings import Settings

EVERY = (*mutants.FAULTS, *mutants.CONTROLS)


def first_failure(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, *, only: str = "") -> str:
    """Run the kit over a mutant and return the first check that fails, or ""."""
    site = package.write(folder / "site", mutants.files_of(mutants.named(name)))
    monkeypatch.syspath_prepend(str(site))
    with contextlib.closing(Session(Settings(package.NAME))) as session:
        for check, subject in session.items():
            if not only or check.name.startswith(only):
                result = session.run(check.name, subject)
                if result.status == "failed":
                    return result.check
    return ""


def test_there_are_many_faults_and_some_controls() -> None:
    assert len(mutants.FAULTS) >= 70
    assert len(mutants.CONTROLS) >= 5


def test_names_are_unique_and_every_fault_says_what_it_is() -> None:
    assert len({m.name for m in EVERY}) == len(EVERY)
    assert all(len(m.what) > 3 and "\n" not in m.what for m in EVERY)


def test_only_the_controls_are_harmless() -> None:
    assert not any(m.harmless for m in mutants.FAULTS)
    assert all(m.harmless for m in mutants.CONTROLS)


def test_what_breaks_no_rule_is_among_the_faults() -> None:
    assert {*mutants.REASONS, *mutants.OUT_OF_REACH} <= {m.name for m in mutants.FAULTS}
    assert not {*mutants.REASONS} & {*mutants.OUT_OF_REACH}


@pytest.mark.parametrize("mutant", EVERY, ids=lambda m: m.name)
def test_every_edit_applies_once_and_the_files_compile(mutant: mutants.Mutant) -> None:
    assert len(mutant.edits) == 1
    files = mutants.files_of(mutant)  # raises unless each old text is there once
    assert files != package.FILES
    for file, text in files.items():
        compile(text, file, "exec")


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("probe_imports_torch", "platform.asking_is_light"),
        ("priority_behind_native", "registration.provider_is_tried"),
        ("epsilon_hard_coded", "provider.values"),
        ("schema_without_residual", "provider.compiled"),
        ("mask_one_more", "layer.values"),
        ("linear_not_copyable", "layer.copies"),
    ],
)
def test_the_kit_finds_a_fault_of_each_kind(
    name: str, check: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert first_failure(tmp_path, name, monkeypatch, only=check) == check


def test_the_kit_finds_nothing_wrong_with_another_order_of_summation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert first_failure(tmp_path, "norm_other_order", monkeypatch, only="provider.values") == ""
