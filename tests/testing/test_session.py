"""A run of the kit: what it needs, what it skips, what it reports."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from opdock.errors import ConfigError, OpdockError, UnknownNameError
from opdock.testing import run
from opdock.testing.check import all_checks
from opdock.testing.results import FAILED, NOT_RUN, PASSED, SKIPPED
from opdock.testing.session import Session
from opdock.testing.settings import Settings


def _package() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kit_package", Path(__file__).with_name("package.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


package = _package()


@pytest.fixture
def good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.syspath_prepend(str(package.write(tmp_path / "installed")))
    return str(package.NAME)


def test_a_package_that_is_not_installed_is_an_error_with_near_names(good: str) -> None:
    with pytest.raises(UnknownNameError, match="opdock_good"):
        run("opdock_god")


def test_the_distribution_s_name_stands_for_its_entry_point(good: str) -> None:
    assert Session(Settings("opdock-good")).target.candidate.name == good


def test_an_unknown_grid_is_an_error() -> None:
    with pytest.raises(ConfigError, match="large"):
        Settings("x", grid="large")


def test_a_skip_needs_a_reason(good: str) -> None:
    with pytest.raises(OpdockError, match="no reason"):
        Session(Settings(good), {"platform.dtypes": " "})


def test_everything_passes_on_a_correct_package(good: str) -> None:
    """Skips and checks that do not apply aside; a new check that fails here is wrong, or finds a fault here."""
    report = run(good, seed=3)
    assert not [r.message for r in report.of(FAILED)]
    assert report.ok
    elsewhere = {"provider.inductor", "attention.loads", "attention.values"}  # the package has no attention backend
    assert {r.check for r in report.of(PASSED)} >= set(all_checks()) - elsewhere
    assert report.device == "cpu"
    told = report.to_dict()
    assert told["schema"] == "opdock.conformance/1"
    assert told["seed"] == 3
    assert told["counts"][PASSED] == len(list(report.of(PASSED)))


def test_only_what_is_named_runs_and_what_it_needs(good: str) -> None:
    names = [r.check for r in run(good, only=["platform.no_side_effects"]).results]
    assert names == ["platform.entry_point_target", "platform.answers", "platform.no_side_effects"]


def test_a_declared_skip_is_reported_and_the_rest_runs(good: str) -> None:
    report = run(good, only=["platform.dtypes", "platform.paths"], skips={"platform.dtypes": "not yet"})
    assert [(r.check, r.message) for r in report.of(SKIPPED)] == [("platform.dtypes", "not yet")]
    assert "platform.paths" in {r.check for r in report.of(PASSED)}
    assert not report.unused_skips


def test_a_skip_that_matches_nothing_is_told(good: str) -> None:
    report = run(good, only=["platform.answers"], skips={"provider.values[rms_norm/other]": "gone"})
    assert report.unused_skips == ("provider.values[rms_norm/other]",)


def test_a_skip_may_name_one_subject_or_many(good: str) -> None:
    session = Session(Settings(good), {"provider.fake[rms_*/good]": "one", "layer.*": "all"})
    assert session.skip_of("provider.fake", "rms_norm/good") == "one"
    assert session.skip_of("provider.fake", "silu_and_mul/good") is None
    assert session.skip_of("layer.values", "attention") == "all"


def test_what_builds_on_a_failed_check_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = package.changed(("platform.py", "def import_kernels(cls):\n", "def import_kernels(cls):\n        1 / 0\n"))
    monkeypatch.syspath_prepend(str(package.write(tmp_path / "installed", files)))
    report = run(package.NAME)
    assert [r.check for r in report.of(FAILED)] == ["registration.import_kernels"]
    assert "ZeroDivisionError" in next(report.of(FAILED)).message
    later = {r.check for r in report.of(NOT_RUN)}
    assert {"registration.import_ir_kernels", "platform.activates", "model.logits"} <= later


def test_every_check_has_a_rule_and_needs_that_come_before_it() -> None:
    seen: set[str] = set()
    for check in all_checks().values():
        assert check.rule.endswith(".")
        assert {*check.needs, *check.after} <= seen, check.name
        seen.add(check.name)


def test_checks_run_in_one_order_whichever_module_was_imported_first() -> None:
    import subprocess

    ask = "from opdock.testing.check import all_checks; print(*all_checks())"
    orders = [
        subprocess.run([sys.executable, "-c", first + ask], capture_output=True, text=True, check=True).stdout.split()
        for first in ("", "import opdock.testing.checks.calls, opdock.testing.checks.asking; ")
    ]
    assert orders[0] == orders[1]
    assert len(orders[0]) > 30


def test_loading_the_pytest_plugin_imports_nothing_heavy() -> None:
    import subprocess

    program = (
        "import sys, opdock.testing, opdock.testing.pytest_plugin; print([m for m in ('torch',) if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
