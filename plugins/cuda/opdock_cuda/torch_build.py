"""What the installed PyTorch was built for, read from its files: importing it takes a second or more."""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Build:
    """The version of PyTorch, and the versions of CUDA and of ROCm (HIP) that it was built with."""

    version: str
    cuda: str | None
    hip: str | None


def read() -> Build | None:
    """Return the build of the PyTorch that ``import torch`` would give, None where there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        return parse(Path(spec.origin).with_name("version.py").read_text(encoding="utf-8"))
    except (OSError, SyntaxError):
        return None


def parse(source: str) -> Build:
    """Return the build that the text of ``torch/version.py`` states."""
    values: dict[str, str | None] = {}
    for node in ast.parse(source).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        target = node.target if isinstance(node, ast.AnnAssign) else targets[0] if targets else None
        value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
            values[target.id] = None if value.value is None else str(value.value)
    return Build(values.get("__version__") or "of unknown version", values.get("cuda"), values.get("hip"))
