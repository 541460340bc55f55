"""A key over the source that an implementation depends on.

It covers the module that defines it and, transitively, the modules of the same top-level package that those
import; the versions of the other distributions that they import; and the content of the package's loaded
libraries. It does not cover values that change while a process runs.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from opdock.ir.signature import unwrap


def source_key(fn: Callable[..., Any]) -> str:
    """Return a sha256 hex digest; the same source gives the same key in every process."""
    digest = hashlib.sha256()
    if isinstance(fn, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        digest.update(str(getattr(fn, "_schema", fn)).encode())
        for library in sorted(torch.ops.loaded_libraries):
            digest.update(_file_hash(library))
        return digest.hexdigest()
    inner = unwrap(fn)
    code = getattr(inner, "__code__", None)
    file = code.co_filename if code is not None else getattr(sys.modules.get(inner.__module__), "__file__", None)
    digest.update(f"{getattr(inner, '__qualname__', inner)!s}".encode())
    if file is None or not Path(file).is_file():
        digest.update(code.co_code + repr(code.co_consts).encode() if code is not None else b"")
        return digest.hexdigest()
    files, foreign = _closure(Path(file), inner.__module__)
    for path in sorted(files):
        digest.update(_file_hash(str(path)))
    for name in sorted(foreign):
        digest.update(f"{name}=={_version(name)}".encode())
    root = Path(file).parent
    for library in sorted(p for p in torch.ops.loaded_libraries if Path(p).is_relative_to(root)):
        digest.update(_file_hash(library))
    return digest.hexdigest()


def _file_hash(path: str) -> bytes:
    stat = Path(path).stat()
    return _hash_of(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=4096)
def _hash_of(path: str, _mtime: int, _size: int) -> bytes:
    return hashlib.sha256(Path(path).read_bytes()).digest()


def _closure(file: Path, module: str) -> tuple[set[Path], set[str]]:
    """Return the files of the own package that ``file`` reaches by imports, and the other top-level names."""
    top = module.partition(".")[0]
    seen: set[Path] = set()
    foreign: set[str] = set()
    queue: list[tuple[Path, str]] = [(file, module)]
    while queue:
        path, name = queue.pop()
        if path in seen:
            continue
        seen.add(path)
        for imported in _imports(path.read_text(encoding="utf-8", errors="replace"), name, path.name == "__init__.py"):
            own = _file_of(imported, file.parent)
            if own is not None and (imported.partition(".")[0] == top or own.parent == file.parent):
                queue.append((own, imported))
            elif imported.partition(".")[0] not in (top, *sys.stdlib_module_names):
                foreign.add(imported.partition(".")[0])
    return seen, foreign


def _imports(source: str, module: str, is_package: bool) -> set[str]:  # noqa: FBT001 - private, two callers
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return set()
    package = module if is_package else module.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".") if package else []
            base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            origin = ".".join(p for p in (base, node.module) if p)
            found.update([origin, *(f"{origin}.{a.name}" if origin else a.name for a in node.names)])
    return found - {""}


def _file_of(module: str, beside: Path) -> Path | None:
    file = getattr(sys.modules.get(module), "__file__", None)
    if file and file.endswith(".py"):
        return Path(file)
    near = beside / f"{module.rpartition('.')[2]}.py"
    return near if "." not in module and near.is_file() else None


@functools.cache
def _version(top: str) -> str:
    names = importlib.metadata.packages_distributions().get(top, [])
    return ",".join(importlib.metadata.version(name) for name in sorted(set(names)))
