"""The names of a first-party plugin agree: folder, distribution, import, entry point, class."""

from __future__ import annotations

import ast
import configparser
from pathlib import Path

import pytest

import opdock

ROOT = Path(__file__).parents[2]
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/setup.cfg"))
SKELETON = ("__init__.py", "platform.py", "probe.py", "py.typed")
RESERVED = {"cpu", "cuda", "rocm", "tpu", "xpu"}  # vLLM's own names for its built-in platforms

pytestmark = pytest.mark.parametrize("folder", PLUGINS, ids=[path.name for path in PLUGINS])


def _settings(folder: Path) -> configparser.ConfigParser:
    settings = configparser.ConfigParser()
    settings.read(folder / "setup.cfg", encoding="utf-8")
    return settings


def test_the_distribution_is_named_after_the_folder(folder: Path) -> None:
    assert _settings(folder)["metadata"]["name"] == f"opdock-{folder.name}"


def test_the_entry_point_is_named_after_the_package_and_like_no_built_in_of_vllm(folder: Path) -> None:
    points = _settings(folder)["options.entry_points"]
    name = f"opdock_{folder.name}"
    assert points["vllm.platform_plugins"].strip() == f"{name} = {name}:register"
    assert name not in RESERVED


def test_the_package_has_the_files_that_every_plugin_has(folder: Path) -> None:
    package = folder / f"opdock_{folder.name}"
    assert [name for name in SKELETON if not (package / name).is_file()] == []
    assert (folder / "README.md").is_file()
    assert (folder / "LICENSE").read_text(encoding="utf-8") == (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_the_platform_class_is_named_after_the_folder(folder: Path) -> None:
    """Read from the source: the vendor's libraries need not be installed."""
    source = (folder / f"opdock_{folder.name}" / "platform.py").read_text(encoding="utf-8")
    names = [node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    assert f"{folder.name.capitalize()}Platform" in names


def test_it_requires_this_series_of_opdock_and_only_its_own_code_is_packed(folder: Path) -> None:
    """The requirement on opdock is what lets its code run at all."""
    options = _settings(folder)["options"]
    major, minor = opdock.__version__.split(".")[:2]
    assert f"opdock>={major}.{minor},<{major}.{int(minor) + 1}" in options["install_requires"].split()
    assert _settings(folder)["options.packages.find"]["include"] == f"opdock_{folder.name}*"
