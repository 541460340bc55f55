"""Each broken package fails exactly the one check that is there for its fault, with the words that a vendor needs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import package
import pytest
from negative import NEGATIVES, hooks
from negative.base import ABSENT, ADD_NORM, HOOK_ENTRY_POINTS, LAYERS, NORM, SILU, Negative

from opdock import testing


def _failures(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    plugin: str = package.NAME,
    timeout: float = 0.0,
    skips: Mapping[str, str] | None = None,
) -> dict[str, str]:
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    report = testing.run(plugin, timeout=timeout, skips=skips)
    return {r.id: r.message for r in report.of("failed")}


# A child that dies while it activates the package leaves its two files to the garbage collector.
@pytest.mark.parametrize("case", NEGATIVES, ids=lambda case: case.name)
def test_a_package_broken_in_one_way_fails_one_check(
    case: Negative, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other check speaks: those that could not pass either need the one that failed."""
    package.write(tmp_path, case.files, entry_points=case.entry_points, requires=case.requires)
    failed = _failures(monkeypatch, tmp_path, case.plugin, case.timeout)
    assert list(failed) == [case.check], "\n\n".join(f"{name}: {text}" for name, text in failed.items())
    assert case.message in failed[case.check]


@pytest.mark.parametrize(
    "files",
    [ABSENT, ADD_NORM, LAYERS, NORM, SILU, hooks.GOOD],
    ids=["absent", "fused_add_rms_norm", "layers", "rms_norm", "silu_and_mul", "hooks"],
)
def test_the_packages_that_are_broken_were_correct(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a case would fail its check for another reason than its own."""
    package.write(tmp_path, files, **({"entry_points": HOOK_ENTRY_POINTS} if files is hooks.GOOD else {}))
    skips = {"model.compiled": "the in-tree decoder takes seconds, and the whole package is checked elsewhere"}
    assert _failures(monkeypatch, tmp_path, skips=skips) == {}


def test_there_are_many_cases_with_names_of_their_own() -> None:
    """A name is what a failure of the suite is looked up by."""
    names = [case.name for case in NEGATIVES]
    assert len(names) == len(set(names))
    assert len(names) >= 45
