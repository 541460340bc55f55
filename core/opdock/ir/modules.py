"""Which source files a module reaches by its imports, found without importing anything."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from pathlib import Path


@dataclass
class Reach:
    """What a module depends on.

    Args:
        files: of its own distribution, sources and extension modules, by module name.
        foreign: names of the other distributions that those import.
        namespaces: of torch ops that those name: ``torch.ops.<namespace>``.
    """

    files: dict[str, Path] = field(default_factory=dict)
    foreign: set[str] = field(default_factory=set)
    namespaces: set[str] = field(default_factory=set)


def reach(module: str, file: Path) -> Reach:
    """Return what the module ``module``, whose source is ``file``, reaches.

    Imports inside functions and under ``TYPE_CHECKING`` count as well: the result must not depend on what has run.
    A module that belongs to no distribution reaches others like it.
    """
    own = distribution_of(module)
    found = Reach()
    queue = [(module, file), *_packages_above(module)]
    while queue:
        name, path = queue.pop()
        if name in found.files:
            continue
        found.files[name] = path
        if path.suffix != ".py":
            continue
        imported, namespaces = _read(path.read_bytes(), name, path.name == "__init__.py")
        found.namespaces |= namespaces
        for target in sorted(imported):
            top = target.partition(".")[0]
            if top in sys.stdlib_module_names:
                continue
            theirs = distribution_of(target)
            if theirs != own:
                found.foreign.add(theirs or top)
                continue
            queue.extend(_packages_above(target))
            origin = _origin(target, beside=file.parent if own is None else None)
            if origin is not None:
                queue.append((target, origin))
    return found


def _packages_above(module: str) -> Iterator[tuple[str, Path]]:
    parts = module.split(".")
    for n in range(1, len(parts)):
        name = ".".join(parts[:n])
        origin = _origin(name)
        if origin is not None:
            yield name, origin


@functools.lru_cache(maxsize=4096)
def _read(source: bytes, module: str, is_package: bool) -> tuple[frozenset[str], frozenset[str]]:  # noqa: FBT001
    """Return the modules that the source imports and the namespaces of torch ops that it names."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return frozenset(), frozenset()
    package = module if is_package else module.rpartition(".")[0]
    imported: set[str] = set()
    namespaces: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            origin = ".".join(part for part in (base, node.module) if part)
            imported.update([origin, *(f"{origin}.{alias.name}" for alias in node.names if alias.name != "*")])
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "torch.ops":
            namespaces.add(node.attr)
    return frozenset(imported - {""}), frozenset(namespaces)


def _origin(module: str, beside: Path | None = None) -> Path | None:
    """Return the file of a module, or None for one that has none or does not exist."""
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None)
    if file is None:
        spec = _find(module)
        file = spec.origin if spec is not None and spec.has_location else None
    if file is None and beside is not None and "." not in module:
        near = beside / f"{module}.py"  # a file that was loaded by its path, with its helper next to it
        file = str(near) if near.is_file() else None
    if file is None or not file.endswith((".py", *EXTENSION_SUFFIXES)):
        return None
    return Path(file) if Path(file).is_file() else None


def _find(module: str) -> ModuleSpec | None:
    """Find a module without importing its packages, which ``importlib.util.find_spec`` would do."""
    path: Sequence[str] | None = None
    spec: ModuleSpec | None = None
    parts = module.split(".")
    for n in range(1, len(parts) + 1):
        name = ".".join(parts[:n])
        try:
            spec = next((s for f in sys.meta_path if (s := f.find_spec(name, path)) is not None), None)
        except (ImportError, AttributeError, ValueError):
            return None
        if spec is None or (n < len(parts) and spec.submodule_search_locations is None):
            return None
        path = list(spec.submodule_search_locations or ())
    return spec


def distribution_of(module: str) -> str | None:
    """Return the distribution that a module's top-level package belongs to, None for a loose file."""
    top = module.partition(".")[0]
    if top == "opdock":  # installed or not: the host is one distribution
        return "opdock"
    names = _distributions().get(top)
    return ",".join(sorted(set(names))) if names else None


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


@functools.cache
def version_of(distribution: str) -> str:
    """Return the version of a distribution (of each, if several share a package), "" if it is not installed."""
    try:
        return ",".join(importlib.metadata.version(name) for name in distribution.split(","))
    except importlib.metadata.PackageNotFoundError:
        return ""
