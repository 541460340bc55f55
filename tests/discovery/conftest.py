"""Metadata folders as installers leave them, written by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Write = Callable[..., Path]
PLUGIN = "[vllm.platform_plugins]\nchip = chip_mod:register\n"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes one metadata folder and returns the folder to put on the path."""

    def make(
        project: str,
        entry_points: str | bytes | None = PLUGIN,
        *,
        place: str = "site",
        version: str = "1.0",
        kind: str = "dist-info",
        metadata: str | None = "Requires-Dist: opdock>=0.1\n",
    ) -> Path:
        root = tmp_path / place
        suffix = f"-{version}" if kind == "dist-info" else ""
        folder = root / f"{project}{suffix}.{kind}"
        folder.mkdir(parents=True)
        if metadata is not None:
            name = "METADATA" if kind == "dist-info" else "PKG-INFO"
            (folder / name).write_text(f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n{metadata}")
        if isinstance(entry_points, bytes):
            (folder / "entry_points.txt").write_bytes(entry_points)
        elif entry_points is not None:
            (folder / "entry_points.txt").write_text(entry_points)
        return root

    return make
