"""Every Python snippet of the documentation runs as it is printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "plugins/*/README.md", "examples/**/*.md")
    for path in ROOT.glob(pattern)
)
_FENCE = re.compile(r"^```python[ \t]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def snippets(text: str) -> list[str]:
    """Return the text of each block fenced as ``python``; ``python no-run`` marks one that is not run."""
    return _FENCE.findall(text)


def test_fenced_python_is_found_and_other_fences_are_not() -> None:
    text = "a\n```python\nx = 1\n```\n```python no-run\ny\n```\n```console\n$ z\n```\n```python\nw = 2\n```\n"
    assert snippets(text) == ["x = 1\n", "w = 2\n"]


@pytest.mark.parametrize("page", [p for p in PAGES if snippets(p.read_text(encoding="utf-8"))], ids=lambda p: p.name)
def test_the_snippets_of_a_page_run_one_after_the_other(page: Path, tmp_path: Path) -> None:
    """In a process of their own: a page may register ops under names that another page uses."""
    blanks = "\n" * 2
    program = tmp_path / f"{page.stem}.py"
    program.write_text(blanks.join(snippets(page.read_text(encoding="utf-8"))), encoding="utf-8")
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(program)], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, f"{page.relative_to(ROOT)}\n{done.stderr}"
