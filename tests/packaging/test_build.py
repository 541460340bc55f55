"""What `pip install` gets: the wheel, the source distribution, and the metadata."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import opdock

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution of `opdock`, built from a copy of the sources."""
    folder = tmp_path_factory.mktemp("build")
    for name in ("setup.cfg", "pyproject.toml", "LICENSE", "README.md"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, folder)
    ignore = shutil.ignore_patterns("*.egg-info", "__pycache__", "*.pyc")
    shutil.copytree(ROOT / "core", folder / "core", ignore=ignore)
    program = (
        "from setuptools import build_meta as b\n"
        "b.build_sdist('dist')\n"
        "b.build_wheel('dist')\n"  # setuptools' own hooks: no second environment, no network
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "dist"


@pytest.fixture(scope="module")
def wheel_names(dist: Path) -> list[str]:
    """The names of the files in the wheel."""
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        return wheel.namelist()


@pytest.fixture(scope="module")
def metadata(dist: Path) -> Message:
    """The metadata of the wheel."""
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(wheel.read(name).decode())


def test_the_wheel_holds_every_source_file_and_the_typing_marker(wheel_names: list[str]) -> None:
    sources = {path.relative_to(ROOT / "core").as_posix() for path in (ROOT / "core").rglob("*.py")}
    assert sources <= set(wheel_names)
    assert "opdock/py.typed" in wheel_names


def test_the_wheel_holds_nothing_but_the_package_and_its_metadata(wheel_names: list[str]) -> None:
    roots = {name.split("/")[0] for name in wheel_names}
    assert roots == {"opdock", f"opdock-{opdock.__version__}.dist-info"}
    own = [name for name in wheel_names if "/cli/scaffold/" not in name]
    assert [name for name in own if "/tests/" in name or "/test_" in name or "conftest" in name] == []


def test_the_wheel_holds_the_templates_of_new_and_nothing_that_a_build_left_in_them(wheel_names: list[str]) -> None:
    templates = {name.removeprefix("opdock/cli/scaffold/") for name in wheel_names if "/cli/scaffold/" in name}
    assert {
        "cpu/setup.cfg",
        "cpu/.gitignore",
        "cpu/.ci/run",
        "cpu/.github/workflows/ci.yml",
        "cpu/tests/test_conformance.py",
        "privateuse1/csrc/device.cpp",
        "privateuse1/opdock_demo_accel/platform.py",
    } <= templates
    assert not [name for name in templates if name.endswith((".so", ".pyc", ".o")) or "egg-info" in name]


def test_the_wheel_carries_the_licence(wheel_names: list[str]) -> None:
    assert any(name.endswith("/licenses/LICENSE") for name in wheel_names)


def test_the_source_distribution_can_be_built_from(dist: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {
        "setup.cfg",
        "pyproject.toml",
        "LICENSE",
        "core/opdock/__init__.py",
        "core/opdock/py.typed",
    } <= names


def test_one_version_is_stated_everywhere(metadata: Message) -> None:
    assert metadata["Version"] == opdock.__version__


def test_what_must_be_installed_is_little_and_the_rest_is_an_extra(metadata: Message) -> None:
    requires = [str(line) for line in metadata.get_all("Requires-Dist") or []]
    needed = sorted(line for line in requires if "extra ==" not in line)
    assert needed == ["packaging>=23", "pluggy>=1.5", "torch>=2.11"]
    assert sorted(metadata.get_all("Provides-Extra") or []) == ["bench", "cli", "models", "test", "triton"]
    assert metadata["Requires-Python"] == ">=3.10"


def test_the_command_opdock_leads_to_a_function_that_exists() -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg", encoding="utf-8")
    line = settings["options.entry_points"]["console_scripts"].strip()
    assert line == "opdock = opdock.cli:main"
    from opdock.cli import main

    assert callable(main)
