"""Which PyTorch and which torch_npu are installed, read from files: importing either takes seconds, or fails."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version


@dataclass(frozen=True)
class Build:
    """What is installed; None where it is not.

    Args:
        torch: version of PyTorch.
        torch_npu: version of torch_npu; ``of unknown version`` where its files are there without metadata.
        wanted: the versions of PyTorch that this torch_npu fits, as it states them; "" if it states none.
    """

    torch: str | None
    torch_npu: str | None
    wanted: str = ""


def read() -> Build:
    """Return what ``import torch`` and ``import torch_npu`` would give."""
    torch = _torch_version()
    if _origin("torch_npu") is None:
        return Build(torch, None)
    try:
        found = importlib.metadata.distribution("torch_npu")
    except importlib.metadata.PackageNotFoundError:
        return Build(torch, "of unknown version")
    return Build(torch, found.version, wanted_torch(found.requires or []))


def wanted_torch(requires: list[str]) -> str:
    """Return the versions of torch among the requirements of a distribution, "" if it names none."""
    for text in requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.name == "torch":
            return str(requirement.specifier)
    return ""


def fits(version: str, wanted: str) -> bool:
    """Return whether a version of torch, such as ``2.13.0+cpu``, is one of those wanted; True if that is unknown."""
    try:
        return Requirement(f"torch{wanted}").specifier.contains(Version(version), prereleases=True)
    except (InvalidRequirement, InvalidVersion):
        return True


def _origin(module: str) -> Path | None:
    spec = importlib.util.find_spec(module)
    return None if spec is None or spec.origin is None else Path(spec.origin)


def _torch_version() -> str | None:
    origin = _origin("torch")
    if origin is None:
        return None
    try:
        body = ast.parse(origin.with_name("version.py").read_text(encoding="utf-8")).body
    except (OSError, SyntaxError):
        return "of unknown version"
    for node in body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Constant):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == "__version__" for target in targets):
                return str(node.value.value)
    return "of unknown version"
