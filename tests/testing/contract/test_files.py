"""Files that nobody would write on purpose, and the ways to name a package."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from opdock.errors import UnknownNameError
from opdock.testing.contract import Result, check_package, files, subject

META = "Metadata-Version: 2.1\nName: opdock-w\nVersion: 3\nRequires-Dist: opdock<0.2,>=0.1\n"
ENTRY = "[vllm.platform_plugins]\nw = opdock_w:register\n"
CODE = 'import opdock\nregister = opdock.platform_plugin("opdock_w.p:P", probe=lambda: None)\n'
CLASS = """import opdock
class P(opdock.Platform):
    _enum = opdock.PlatformEnum.OOT
    device_name = device_type = "cpu"
    dispatch_key = "CPU"
    api_version = 1
"""


def wheel(path: Path, **more: bytes | str) -> str:
    made = path / "opdock_w-3-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as out:
        out.writestr("opdock_w-3.dist-info/METADATA", META)
        out.writestr("opdock_w-3.dist-info/entry_points.txt", ENTRY)
        out.writestr("opdock_w-3.data/purelib/opdock_w/__init__.py", CODE)
        out.writestr("opdock_w/p.py", CLASS)
        for name, data in more.items():
            out.writestr(f"opdock_w/{name}.py", data)
    return str(made)


def folder(path: Path) -> Path:
    (path / "opdock_w").mkdir()
    (path / "opdock_w/__init__.py").write_text(CODE)
    (path / "opdock_w/p.py").write_text(CLASS)
    (path / "pyproject.toml").write_text(
        '[project]\nname = "opdock-w"\nversion = "3"\ndependencies = ["opdock>=0.1,<0.2"]\n'
        '[project.entry-points."vllm.platform_plugins"]\nw = "opdock_w:register"\n'
    )
    return path


def told(result: Result) -> list[str]:
    return [f.message for f in result.findings]


def test_a_wheel_is_read_where_it_lies(tmp_path: Path) -> None:
    """Its purelib scheme stands where it would be installed; nothing is unpacked."""
    result = check_package(wheel(tmp_path))
    assert (result.name, result.version, result.kind, told(result)) == ("opdock-w", "3", "wheel", [])
    assert [p.name for p in tmp_path.iterdir()] == ["opdock_w-3-py3-none-any.whl"]


@pytest.mark.skipif(os.sys.version_info < (3, 11), reason="needs tomllib")
def test_a_folder_with_a_pyproject(tmp_path: Path) -> None:
    """With a src folder, too."""
    assert told(check_package(str(folder(tmp_path)))) == []
    (tmp_path / "src").mkdir()
    (tmp_path / "opdock_w").rename(tmp_path / "src/opdock_w")
    result = check_package(str(tmp_path))
    assert (told(result), result.files) == ([], 2)


def test_a_setup_py_is_read_for_its_literals_and_not_run(tmp_path: Path) -> None:
    """It would leave a file."""
    folder(tmp_path)
    (tmp_path / "pyproject.toml").unlink()
    (tmp_path / "setup.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\nfrom setuptools import setup\nsetup(name='opdock-w', "
        "install_requires=['opdock>=0.1,<0.2'], entry_points={'vllm.platform_plugins': ['w = opdock_w:register']})\n"
    )
    assert told(check_package(str(tmp_path))) == []
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x7fELF\x02\x01\x00\x00", "null bytes"),
        (b"# coding: klingon\nx = 1\n", "klingon"),
        (b"x = '\xff'\n", "encoding"),
        (b"x = " + b"-" * 100_000 + b"1\n", ""),
        (b"def f(:\n", "(line 1)"),
    ],
)
def test_a_file_that_is_no_python_is_a_finding(data: bytes, words: str, tmp_path: Path) -> None:
    """In a wheel as in a folder; all else is checked."""
    result = check_package(wheel(tmp_path, odd=data))
    assert [f.rule for f in result.findings] == ["opdock/unreadable-file"]
    assert words in result.findings[0].message and result.findings[0].file == "opdock_w/odd.py"


def test_links_in_a_circle_and_what_is_no_file(tmp_path: Path) -> None:
    """A link to a folder is not followed; a link to itself, a pipe and a huge file are findings."""
    package = folder(tmp_path) / "opdock_w"
    (package / "again").symlink_to(tmp_path)
    (package / "loop.py").symlink_to(package / "loop.py")
    os.mkfifo(package / "pipe.py")
    with (package / "huge.py").open("wb") as out:
        out.truncate(files.MOST_BYTES + 1)
    result = check_package(str(tmp_path))
    found = {f.file for f in result.findings if f.rule == "opdock/unreadable-file"}
    assert found >= {"opdock_w/loop.py", "opdock_w/pipe.py", "opdock_w/huge.py"}


def test_a_name_with_a_control_character_is_no_module(tmp_path: Path) -> None:
    """It is left out: no import statement could name it."""
    package = folder(tmp_path) / "opdock_w"
    (package / "a\x1b[2Jb.py").write_text("def (")
    assert [f for f in check_package(str(tmp_path)).findings if "cannot be read" in f.message] == []


@pytest.mark.parametrize("name", ["no-such-package-here", "", "../x", "a\0b", "x" * 5000, "opdock_w.p:P"])
def test_what_is_nothing_is_told(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the names that are known."""
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    with pytest.raises(UnknownNameError, match="Remedy"):
        subject.find(name)


def test_a_wheel_that_is_no_zip(tmp_path: Path) -> None:
    """The file exists."""
    (tmp_path / "a-1-py3-none-any.whl").write_bytes(b"PK\x03\x04nonsense")
    with pytest.raises(UnknownNameError, match="no wheel that can be read"):
        subject.find(str(tmp_path / "a-1-py3-none-any.whl"))


def test_nothing_of_the_package_runs(tmp_path: Path) -> None:
    """Each file would leave a mark."""
    mark = tmp_path / "ran"
    made = wheel(tmp_path, loud=f"open({str(mark)!r}, 'w')", __main__="raise SystemExit")
    check_package(made)
    assert not mark.exists()
    assert "opdock_w" not in os.sys.modules


def test_an_import_package_without_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name; there is no metadata to judge."""
    folder(tmp_path)
    (tmp_path / "pyproject.toml").unlink()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert told(check_package("opdock_w")) == []
