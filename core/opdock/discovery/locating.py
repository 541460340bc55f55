"""Whether what an entry point names can be there at all, and whose it is; decided without importing anything."""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Iterable
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from opdock.discovery.folders import read, split_stem

if TYPE_CHECKING:
    from opdock.discovery.metadata import Candidate, Dist


def locate(candidate: Candidate) -> str | None:
    """Return why the target of the entry point cannot be loaded, None if it can; imports nothing."""
    module, colon, attribute = (part.strip() for part in candidate.value.partition(":"))
    names = [*module.split("."), *(attribute.split(".") if colon else [])]
    if not all(name.isidentifier() for name in names):
        return f"{candidate.value!r} is not of the form 'package.module:attribute'"
    try:
        spec = find_spec(module)
    except Exception as err:  # noqa: BLE001 - a finder of somebody else's
        return f"module {module} cannot be looked up: {type(err).__name__}: {err}"
    if spec is None:
        return f"module {module} does not exist: {candidate.dist.name} does not ship it"
    if is_namespace(spec):
        places = ", ".join(map(str, spec.submodule_search_locations or ()))
        return f"{module} is a namespace package without code, maybe a folder left over: {places}"
    return foreign_module(candidate.dist, module, spec)


def find_spec(module: str) -> ModuleSpec | None:
    """Return the spec of a module; asks the finders, and imports none of its parents."""
    path: list[str] | None = None
    spec, name = None, ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        if sys.modules.get(name, name) is None:
            return None  # its import is blocked
        spec = _ask_finders(name, path)
        if spec is None:
            return None
        loaded = getattr(sys.modules.get(name), "__path__", None)  # a package may have extended it
        places = spec.submodule_search_locations if loaded is None else loaded
        path = [] if places is None else list(places)
    return spec


def is_namespace(spec: ModuleSpec) -> bool:
    """Return whether the spec is of a folder without an ``__init__``."""
    return spec.loader is None and spec.submodule_search_locations is not None


def _ask_finders(name: str, path: list[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        if finder is PathFinder:
            spec = _on_path(name, sys.path if path is None else path)
        else:
            spec = finder.find_spec(name, path) if hasattr(finder, "find_spec") else None
        if spec is not None:
            return spec
    return None


def _on_path(name: str, path: Iterable[str]) -> ModuleSpec | None:
    """Do what ``PathFinder`` does, which for a nested namespace package needs the parent imported."""
    portions: list[str] = []
    for entry in path:
        importer = pkgutil.get_importer(entry or str(Path.cwd()))
        spec = importer.find_spec(name) if importer is not None else None
        if spec is not None and spec.loader is not None:
            return spec
        portions += (spec.submodule_search_locations or []) if spec is not None else []
    if not portions:
        return None
    namespace = ModuleSpec(name, None, is_package=True)
    namespace.submodule_search_locations = portions
    return namespace


def foreign_module(dist: Dist, module: str, spec: ModuleSpec) -> str | None:
    """Return that a module is not the distribution's own, as far as the records can say."""
    if not spec.has_location or spec.origin is None:
        return f"{module} is built into Python" if spec.origin in ("built-in", "frozen") else None
    origin = os.path.realpath(spec.origin)
    if dist.editable_root and _inside(origin, dist.editable_root):
        return None
    listed = _lists(dist, module, origin)
    if listed:
        return None
    owner = _owner(spec.origin, module)
    if owner is None and module.partition(".")[0] in sys.stdlib_module_names:
        owner = "the standard library"
    if owner is None and listed is None:
        return None
    return f"{dist.name} does not ship module {module}; it belongs to {owner or 'something else'} ({spec.origin})"


def _lists(dist: Dist, module: str, origin: str) -> bool | None:
    """Return whether the distribution's records list the module; None where they cannot tell."""
    own = "/".join(module.split("."))
    files = [f for f in dist.files() or () if f.endswith((".py", ".so", ".pyd", ".pyc"))]
    code = [f for f in files if "__pycache__" not in f and not Path(f).name.startswith("__editable__")]
    if not code:
        top = Path(dist.metadata_path, "top_level.txt")
        tops = (read(top) or "").split()
        editable = dist.editable_root is not None or any(f.endswith(".pth") for f in dist.files() or ())
        return None if editable or not tops else module.partition(".")[0] in tops
    sources = not Path(dist.metadata_path, "RECORD").is_file()  # these are relative to the source folder
    for file in code:
        stem = file.rpartition("/")[0] if Path(file).name.startswith("__init__.") else _without_suffixes(file)
        if stem == own or (sources and stem.endswith("/" + own)):
            return True
        if os.path.normpath(Path(dist.location, file)) == origin:
            return True
    return False


def _without_suffixes(file: str) -> str:
    folder, slash, name = file.rpartition("/")
    return folder + slash + name.partition(".")[0]


def _owner(origin: str, module: str) -> str | None:
    """Return the distribution whose record lists the file, by name and version."""
    folder = Path(origin).parent
    for _ in range(module.count(".") + Path(origin).name.startswith("__init__.")):
        folder = folder.parent
    relative = os.path.relpath(origin, folder).replace(os.sep, "/")
    for record in sorted(folder.glob("*.dist-info/RECORD")):
        if f"\n{relative}," in "\n" + (read(record) or ""):
            name, version = split_stem(record.parent.name)
            return f"{name.replace('_', '-')} {version}"
    return None


def _inside(file: str, folder: str) -> bool:
    root = os.path.realpath(folder)
    return os.path.commonpath([file, root]) == root
