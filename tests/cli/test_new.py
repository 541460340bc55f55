"""``opdock new``: a package that works, nothing overwritten, every refusal in words."""

from __future__ import annotations

import compileall
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opdock import cli
from opdock.cli import names, new
from opdock.errors import ConfigError

EXAMPLES = Path(__file__).parents[2] / "examples"
OF = {"cpu": EXAMPLES / "opdock-demo-cpu", "privateuse1": EXAMPLES / "opdock-demo-accel"}
DEVICES = sorted(OF)
JsonOf = Callable[..., dict[str, Any]]


def tree(folder: Path) -> dict[str, str]:
    return {p.relative_to(folder).as_posix(): p.read_text("utf-8") for p in folder.rglob("*") if p.is_file()}


def listed(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


# -- names


@pytest.mark.parametrize("text", ["acme", "my-chip", "my_chip", "x1", "a-name-of-twenty-chr"])
def test_words_of_lower_case_letters_and_digits_are_a_name(text: str) -> None:
    assert names.parse(text).dashed == text.replace("_", "-")


def test_a_name_is_written_in_one_way_in_each_place() -> None:
    name = names.parse("my-chip2")
    assert (name.snake, name.dashed, name.upper, name.camel) == ("my_chip2", "my-chip2", "MY_CHIP2", "MyChip2")
    assert name.forms()[4:] == ("my chip2", "My Chip2", "My chip2")


@pytest.mark.parametrize(
    ("text", "why", "remedy"),
    [
        ("", "lower-case letters", "opdock new acme"),
        ("Acme", "lower-case letters", "opdock new acme"),
        ("my chip", "lower-case letters", "opdock new my-chip"),
        ("3d", "a letter first", "opdock new d"),
        ("a--b", "single dashes", "opdock new a-b"),
        ("acme-", "single dashes", "opdock new acme"),
        ("ácme", "lower-case letters", "opdock new cme"),
        ("acme\n", "lower-case letters", "opdock new acme"),
        ("a/b", "path separator", "opdock new a-b"),
        ("..\\x", "path separator", "opdock new x"),
        ("opdock", "opdock is put before it", "opdock new acme"),
        ("opdock_acme", "opdock is put before it", "opdock new acme"),
        ("opdock-acme", "opdock is put before it", "opdock new acme"),
        ("a" * 21, "20 are allowed", f"opdock new {'a' * 20}"),
    ],
)
def test_what_is_no_name_is_refused_with_the_nearest_one(text: str, why: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        names.parse(text)
    assert why in caught.value.why[0]
    assert caught.value.remedy == remedy


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("cuda", "breaks vLLM"),
        ("cpu", "breaks vLLM"),
        ("ascend", "a package of its own"),
        ("native", "native definitions"),
        ("class", "a word of Python's"),
        ("json", "there is a module json"),
        ("pytest", "is installed"),
    ],
)
def test_names_that_are_taken_are_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        names.check_free(names.parse(text), own_device=False)
    assert why in caught.value.why[0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("npu", "torch_npu"),
        ("mps", "PyTorch has a device"),
        ("half", "would hide torch.half"),
        ("pin-memory", "would hide torch.Tensor.pin_memory"),
        ("aten", "operators under aten::"),
        ("acme2", "no digits"),
    ],
)
def test_a_device_of_its_own_needs_a_name_that_pytorch_has_not(text: str, why: str) -> None:
    names.check_free(names.parse(text), own_device=False)
    with pytest.raises(ConfigError) as caught:
        names.check_free(names.parse(text), own_device=True)
    assert why in caught.value.why[0]


def test_a_package_that_is_installed_is_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from opdock.discovery import metadata

    monkeypatch.setattr(metadata, "installed_version", {"opdock-acme": "1.2"}.get)
    with pytest.raises(ConfigError, match=r"opdock-acme 1\.2 is installed"):
        names.check_free(names.parse("acme"), own_device=False)


def test_a_folder_of_the_same_name_is_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "acme").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    names.check_free(names.parse("acme"), own_device=False)


def test_a_proposed_name_is_possible_itself() -> None:
    for text in ("cuda", "class", "json"):
        with pytest.raises(ConfigError) as caught:
            names.check_free(names.parse(text), own_device=True)
        remedy = caught.value.remedy or ""
        names.check_free(names.parse(remedy.removeprefix("opdock new ")), own_device=True)


# -- renaming


def test_a_text_is_renamed_in_one_pass() -> None:
    old, name = names.parse("demo-accel"), names.parse("not-demo-accel")
    text = (
        "demo_accel demo-accel DEMO_ACCEL_DEVICES DemoAccelPlatform demo accel Demo Accel opdock_demo_accel democracy"
    )
    assert new.rename(text, old, name) == (
        "not_demo_accel not-demo-accel NOT_DEMO_ACCEL_DEVICES NotDemoAccelPlatform not demo accel Not Demo Accel "
        "opdock_not_demo_accel democracy"
    )


@pytest.mark.parametrize("device", DEVICES)
def test_the_package_is_the_example_apart_from_its_name(device: str, tmp_path: Path, json_of: JsonOf) -> None:
    """Renamed back, it is the example, byte for byte; and nothing of the example's name is left."""
    told = json_of("new", "my-chip", "--device", device, "--into", str(tmp_path))
    made = tree(tmp_path / "opdock-my-chip")
    assert told["files"] == sorted(made)
    template, name = new.TEMPLATES[device].name, names.parse("my-chip")
    assert not any(form in path + text for path, text in made.items() for form in template.forms())
    again = {new.rename(path, name, template): new.rename(text, name, template) for path, text in made.items()}
    assert again == {path: (OF[device] / path).read_text("utf-8") for path in again}
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=OF[device], capture_output=True, text=True).stdout
    assert not tracked or set(again) == set(tracked.strip("\0").split("\0"))


@pytest.mark.parametrize("device", DEVICES)
def test_the_package_compiles_and_ruff_has_nothing_to_say(device: str, tmp_path: Path) -> None:
    """Short and long names: no line is laid out anew."""
    ruff = Path(sys.executable).with_name("ruff")
    for name in ("xy", "a-name-of-twenty-chr"):
        assert cli.main(["new", name, "--device", device, "--into", str(tmp_path)]) == 0
    assert compileall.compile_dir(tmp_path, quiet=1)
    if not ruff.is_file():
        pytest.skip("needs ruff")
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run([ruff, *command, "--no-cache", tmp_path], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_scripts_can_be_run_and_the_rest_cannot(tmp_path: Path) -> None:
    assert cli.main(["new", "acme", "--into", str(tmp_path)]) == 0
    folder = tmp_path / "opdock-acme"
    runnable = [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file() and os.access(p, os.X_OK)]
    assert runnable == [".ci/run"]


def test_what_builds_and_tools_leave_is_not_taken(tmp_path: Path) -> None:
    template = tmp_path / "template"
    for name in ("demo.py", "a/__pycache__/b.pyc", "build/x.py", "d.egg-info/PKG-INFO", "p/_C.so", ".ruff_cache/x"):
        (template / name).parent.mkdir(parents=True, exist_ok=True)
        (template / name).write_text("x = 1\n")
    assert list(new.renamed_tree(template, names.parse("demo"), names.parse("acme"))) == ["acme.py"]


def test_an_installation_without_templates_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no templates"):
        new.renamed_tree(tmp_path / "nowhere", names.parse("demo"), names.parse("acme"))


# -- writing


def test_the_next_commands_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new", "my-chip"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Wrote opdock-my-chip:"
    assert lines[lines.index("Next:") + 1 :] == [
        "  cd opdock-my-chip",
        "  pip install -e .",
        "  MY_CHIP_DEVICES=1 opdock doctor",
        "  python -m pytest",
    ]
    assert all((tmp_path / "opdock-my-chip" / line.strip()).is_file() for line in lines[1 : lines.index("Next:")])


def test_a_device_of_its_own_is_built_against_the_installed_pytorch(tmp_path: Path, json_of: JsonOf) -> None:
    told = json_of("new", "acme", "--device", "privateuse1", "--into", str(tmp_path))
    assert told["next"][1:3] == ["pip install 'setuptools>=77'", "pip install --no-build-isolation -e ."]


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "opdock-acme").mkdir()
    assert cli.main(["new", "acme", "--into", str(tmp_path)]) == 0
    assert listed(tmp_path) == ["opdock-acme"]


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither a folder with something in it, nor a file, nor what a link leads to."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "opdock-full").mkdir()
    (tmp_path / "opdock-full" / "mine.txt").write_text("mine")
    (tmp_path / "opdock-file").write_text("mine")
    (tmp_path / "opdock-link").symlink_to(elsewhere)
    (tmp_path / "opdock-dangling").symlink_to(tmp_path / "nothing")
    before = tree(tmp_path)
    for name, why in {"full": "not empty", "file": "is a file", "link": "symbolic", "dangling": "symbolic"}.items():
        assert cli.main(["new", name, "--into", str(tmp_path)]) == 1
        err = capsys.readouterr().err
        assert why in err and "Nothing is overwritten." in err
    assert tree(tmp_path) == before
    assert listed(elsewhere) == []


def test_the_folder_to_write_into_must_be_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for name in ("nowhere", "file"):
        assert cli.main(["new", "acme", "--into", str(tmp_path / name)]) == 1
        assert "is no folder" in capsys.readouterr().err
    assert listed(tmp_path) == ["file"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_what_is_interrupted_leaves_nothing(
    stop: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    count, write_text = itertools.count(), Path.write_text

    def fails_at_the_fifth(self: Path, *args: Any, **kwargs: Any) -> int:
        if next(count) == 4:
            raise stop
        return write_text(self, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", fails_at_the_fifth)
    code = cli.main(["new", "acme", "--into", str(tmp_path)])
    assert listed(tmp_path) == []
    err = capsys.readouterr().err
    if isinstance(stop, OSError):
        assert code == 1 and "cannot be written" in err and "No space left" in err
    else:
        assert code == 130 and err == "Interrupted.\n"


def test_what_came_into_the_way_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "opdock-acme"
    target.mkdir()
    (target / "mine").write_text("mine")
    with pytest.raises(ConfigError, match="cannot be written"):
        new.write({"a": "b"}, target)
    assert tree(tmp_path) == {"opdock-acme/mine": "mine"}


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    if os.access(closed, os.W_OK):
        pytest.skip("this user may write everywhere")
    assert cli.main(["new", "acme", "--into", str(closed)]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_the_written_package_is_found_and_declines_until_it_is_plugged_in(tmp_path: Path) -> None:
    """As an editable installation leaves it: metadata beside the sources."""
    assert cli.main(["new", "acme", "--into", str(tmp_path)]) == 0
    folder = tmp_path / "opdock-acme"
    program = "from setuptools import build_meta as b; b.prepare_metadata_for_build_wheel('.')"
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(folder / "opdock_acme.egg-info", ignore_errors=True)
    environ = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{os.environ['PYTHONPATH']}"}
    environ.pop("VLLM_PLUGINS", None)
    verdicts = []
    for devices in ("0", "1"):
        command = [sys.executable, "-m", "opdock", "doctor", "--no-order", "--json"]
        told = subprocess.run(command, cwd=tmp_path, env=environ | {"ACME_DEVICES": devices}, capture_output=True)
        report = json.loads(told.stdout)
        mine = next(c for c in report["candidates"] if c["name"] == "opdock_acme")
        verdicts.append((report["platform"], mine["verdict"]))
    assert verdicts == [("cpu", "declined"), ("opdock_acme", "activated")]
