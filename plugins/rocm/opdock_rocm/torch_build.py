"""What the installed PyTorch was built for, read from its files: importing it takes a second or more."""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Build:
    """The version of PyTorch, the versions of CUDA and of HIP that it was built with, and where its libraries lie."""

    version: str
    cuda: str | None
    hip: str | None
    libraries: str = ""


def read() -> Build | None:
    """Return the build of the PyTorch that ``import torch`` would give, None where there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    try:
        return parse((folder / "version.py").read_text(encoding="utf-8"), str(folder / "lib"))
    except (OSError, SyntaxError):
        return None


def parse(source: str, libraries: str = "") -> Build:
    """Return the build that the text of ``torch/version.py`` states."""
    values: dict[str, str | None] = {}
    for node in ast.parse(source).body:
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or not isinstance(node.value, ast.Constant):
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name):
                values[target.id] = None if node.value.value is None else str(node.value.value)
    return Build(values.get("__version__") or "of unknown version", values.get("cuda"), values.get("hip"), libraries)
