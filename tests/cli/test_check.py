"""``opdock check``: what it prints and returns; the rules have tests of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opdock import cli

REPO = Path(__file__).parents[2]


def write(folder: Path, *, requires: str = "opdock>=0.1,<0.2", more: str = "    pass") -> str:
    package = folder / "opdock_chip"
    package.mkdir()
    (folder / "setup.cfg").write_text(
        f"[metadata]\nname = opdock-chip\nversion = 2\n[options]\ninstall_requires =\n    {requires}\n"
        "[options.entry_points]\nvllm.platform_plugins =\n    opdock_chip = opdock_chip:register\n"
    )
    (package / "__init__.py").write_text(
        'import opdock\nregister = opdock.platform_plugin("opdock_chip.p:P", probe=lambda: "no chip")\n'
    )
    (package / "p.py").write_text(
        "import opdock\nclass P(opdock.Platform):\n    _enum = opdock.PlatformEnum.OOT\n    api_version = 1\n"
        f"    device_name = device_type = 'cpu'\n    dispatch_key = 'CPU'\n{more}\n"
    )
    return str(folder)


DRIFT = "    @classmethod\n    def set_device(cls, index): ..."


def test_a_clean_package_is_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its name and the files that were read."""
    assert cli.main(["check", write(tmp_path), "--strict"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("opdock-chip 2  (folder: ") and "2 files" in out
    assert out.endswith("0 errors, 0 warnings, 0 notes.\nNothing to object to.\n")


def test_an_error_is_one_and_is_shown_with_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What, why and remedy."""
    assert cli.main(["check", write(tmp_path, more=DRIFT)]) == 1
    out = capsys.readouterr().out
    assert "error  opdock/hook-signature\n  opdock_chip/p.py:8: P.set_device(index) does not fit" in out
    assert "Remedy: @classmethod\n" in out and "1 error, 0 warnings" in out


def test_a_warning_counts_with_strict_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The requirement has no upper bound."""
    path = write(tmp_path, requires="opdock>=0.1")
    assert (cli.main(["check", path]), cli.main(["check", path, "--strict"])) == (0, 1)
    capsys.readouterr()


def test_json_has_stable_keys(tmp_path: Path, json_of: Any) -> None:
    """The schema's name and every finding in full."""
    told = json_of("check", write(tmp_path, more=DRIFT), code=1)
    assert told["schema"] == "opdock.check/1"
    assert (told["package"], told["version"], told["kind"], told["written_for"]) == (
        "opdock-chip",
        "2",
        "folder",
        "opdock",
    )
    assert told["counts"] == {"error": 1, "warning": 0, "note": 0}
    assert set(told["findings"][0]) == {"rule", "level", "message", "why", "remedy", "file", "line", "column"}


def test_sarif_is_written_beside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Next to what is printed."""
    (tmp_path / "p").mkdir()
    assert cli.main(["check", write(tmp_path / "p", more=DRIFT), "--sarif", str(tmp_path / "out.sarif")]) == 1
    log = json.loads((tmp_path / "out.sarif").read_text())
    assert [r["ruleId"] for r in log["runs"][0]["results"]] == ["opdock/hook-signature"]
    assert "hook-signature" in capsys.readouterr().out


def test_sarif_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Told in a line."""
    assert cli.main(["check", write(tmp_path), "--sarif", str(tmp_path / "gone" / "x")]) == 1
    assert "No such file" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["no-such-thing"], [], ["x", "--timeout", "0"], ["x", "--timeout", "nan"]])
def test_wrong_usage_is_two(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing on stdout."""
    assert cli.main(["check", *words]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err


def test_text_of_the_package_is_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name must not clear the terminal."""
    path = write(tmp_path)
    setup = (tmp_path / "setup.cfg").read_text().replace("opdock-chip", "opdock\x1b[2J")
    (tmp_path / "setup.cfg").write_text(setup)
    cli.main(["check", path])
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\\x1b[2J" in out


def test_run_adds_what_running_shows(tmp_path: Path, json_of: Any) -> None:
    """In a child: this process imports nothing of it."""
    told = json_of("check", write(tmp_path), "--run")
    rules = [f["rule"] for f in told["findings"]]
    assert rules == ["opdock/run-declined", "opdock/run-measured"]
    assert "no chip" in told["findings"][0]["message"]


@pytest.mark.parametrize("name", ["plugins/cuda", "examples/opdock-demo-accel", "examples/opdock-demo-cpu"])
def test_the_packages_of_this_repository_are_clean(name: str, json_of: Any) -> None:
    """No error and no warning."""
    if not (REPO / name).is_dir():
        pytest.skip(f"{name} is not here")
    assert json_of("check", str(REPO / name), "--strict")["counts"] == {"error": 0, "warning": 0, "note": 0}
