"""The page on writing a plugin, followed to the letter: its files written, its commands run, its outputs compared."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "write-a-plugin.md"
_FENCE = re.compile(r"^```(\S+)(?: ([^\n]+))?\n(.*?)^```", re.MULTILINE | re.DOTALL)
_BUILD_HERE = {"PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_DEPS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def _pattern(expected: str) -> re.Pattern[str]:
    """Return a pattern in which ``...`` stands for anything, and a run of blanks for any other."""
    words = [r".*?" if word == "..." else re.escape(word) for word in re.split(r"\s+|(\.\.\.)", expected) if word]
    return re.compile(r"\s*".join(words) + r"\s*\Z", re.DOTALL)


def _session(body: str) -> list[tuple[str, str]]:
    """Return (command, expected output) for each command of a console block."""
    parts = re.split(r"^\$ (.*)\n", body, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def test_a_plugin_written_from_the_page_does_what_the_page_says(env: Any, tmp_path: Path) -> None:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "OPDOCK_", "PYTHON", "PYTEST_", "COV_"))}
    environ = {**kept, **_BUILD_HERE, "OMP_NUM_THREADS": "1", "PATH": f"{env.folder / 'bin'}:{os.environ['PATH']}"}
    commands = 0
    for language, name, body in _FENCE.findall(PAGE.read_text(encoding="utf-8")):
        if language != "console":
            if name:
                (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / name).write_text(body, encoding="utf-8")
            continue
        for command, expected in _session(body):
            if command.startswith("export "):
                variable, _, value = command.removeprefix("export ").partition("=")
                environ[variable] = value
                continue
            # The environment is a copy: the script that is its pip belongs to another one.
            run = re.sub(r"^pip ", "python -m pip ", command)
            done = subprocess.run(
                run, shell=True, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            wanted = expected if expected.strip() else "..."
            assert _pattern(wanted).match(done.stdout), f"$ {command}\nexpected:\n{expected}\ngot:\n{done.stdout}"
            commands += 1
    assert commands >= 9


def test_the_comparison_can_fail() -> None:
    assert _pattern("a  b\n... c").match("a b\nwhatever\nc\n")
    assert not _pattern("a b").match("a c")
    assert not _pattern("a ... b").match("a x")
    assert not _pattern("a").match("a b")
