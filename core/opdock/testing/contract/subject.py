"""From what the user typed to the package that is checked: its metadata and its files."""

from __future__ import annotations

import configparser
import contextlib
import importlib
import importlib.metadata
import os
from dataclasses import dataclass, field
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from opdock.discovery import entry_points, folders
from opdock.discovery.entry_points import Line
from opdock.errors import UnknownNameError, suggest
from opdock.testing.contract.files import FolderFiles, Unreadable, WheelFiles, walk
from opdock.testing.contract.findings import Finding, Place, finding
from opdock.testing.contract.source import Package


@dataclass(frozen=True)
class Subject:
    """What is checked.

    Args:
        name: of the distribution, or of the import package where there is no metadata.
        version: "?" where it is not known.
        kind: installed, folder or wheel.
        path: of the folder, the wheel or the place of the installation.
        package: its modules.
        requires: its requirements as they are written.
        lines: of its entry points.
        metadata_file: shown with findings about the metadata.
        findings: about reading it.
    """

    name: str
    version: str
    kind: str
    path: str
    package: Package
    requires: tuple[str, ...] = ()
    lines: tuple[Line, ...] = ()
    metadata_file: str = ""
    findings: tuple[Finding, ...] = ()


@dataclass
class _Read:
    name: str = ""
    version: str = "?"
    requires: list[str] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    file: str = ""
    prefix: str = ""
    findings: list[Finding] = field(default_factory=list)


def find(wanted: str) -> Subject:
    """Return the subject that ``wanted`` names: a wheel, a folder, a distribution, an entry point, a package.

    Raises: UnknownNameError where nothing is called so.
    """
    path = Path(wanted)
    is_folder = os.path.isdir(wanted)
    if wanted.endswith(".whl") and os.path.isfile(wanted):
        try:
            return _of_wheel(path)
        except Unreadable as err:
            raise UnknownNameError(str(err), remedy="give the path of a wheel that is whole.") from None
    if is_folder and (os.sep in wanted or wanted in (".", "..")):
        return _of_folder(path)
    dist = _distribution(wanted)
    if dist is not None:
        return _of_installed(dist)
    if is_folder:
        return _of_folder(path)
    spec_folder = _import_folder(wanted)
    if spec_folder is not None:
        return Subject(wanted, "?", "folder", str(spec_folder), _package_alone(spec_folder))
    raise UnknownNameError(
        f"{wanted!r} is no installed distribution, entry point or import package, and no folder or wheel.",
        remedy=suggest(wanted, _known_names()),
    )


def _known_names() -> set[str]:
    from opdock.discovery import metadata

    return {c.dist.name for c in metadata.scan().candidates}


def _distribution(wanted: str) -> importlib.metadata.Distribution | None:
    from opdock.discovery import metadata

    names = [wanted] if wanted.replace("-", "").replace("_", "").replace(".", "").isalnum() else []
    names += [c.dist.name for c in metadata.scan().candidates if c.name == wanted]
    if wanted.isidentifier():
        names += importlib.metadata.packages_distributions().get(wanted, [])
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError, ValueError):
            return importlib.metadata.distribution(name)
    return None


def _import_folder(wanted: str) -> Path | None:
    from opdock.discovery import locating

    if not all(part.isidentifier() for part in wanted.split(".")):
        return None
    try:
        spec = locating.find_spec(wanted)
    except Exception:  # noqa: BLE001 - a finder of somebody else's
        return None
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else None


def _package_alone(folder: Path) -> Package:
    names = [f"{folder.name}/{n}" for n in walk(folder, source_tree=False)]
    return Package(FolderFiles(str(folder.parent), names))


# -- a wheel


def _of_wheel(path: Path) -> Subject:
    files = WheelFiles(path)
    info = next((n.partition("/")[0] for n in files.names if n.endswith(".dist-info/METADATA")), "")
    read = _Read(file=f"{info}/entry_points.txt")

    def text(name: str) -> str | None:
        try:
            return files.read(f"{info}/{name}").decode("utf-8", "backslashreplace")
        except Unreadable as err:
            if f"{info}/{name}" in files.names:
                read.findings.append(finding("metadata-unreadable", f"{info}/{name} cannot be read: {err}"))
            return None

    _headers(text("METADATA"), read)
    read.lines = list(entry_points.parse(text("entry_points.txt") or ""))
    return _subject(read, "wheel", path, Package(files), fallback=path.name.partition("-")[0])


def _headers(text: str | None, read: _Read) -> None:
    if text is None:
        return
    headers = HeaderParser().parsestr(text.partition("\n\n")[0])
    read.name = " ".join(str(headers.get("Name") or "").split())
    read.version = " ".join(str(headers.get("Version") or "?").split())
    read.requires = [str(r) for r in headers.get_all("Requires-Dist") or []]


def _subject(read: _Read, kind: str, path: Path, package: Package, *, fallback: str) -> Subject:
    return Subject(
        read.name or fallback,
        read.version,
        kind,
        str(path),
        package,
        tuple(read.requires),
        tuple(read.lines),
        read.file,
        tuple(read.findings),
    )


# -- an installed distribution


def _of_installed(dist: importlib.metadata.Distribution) -> Subject:
    from opdock.discovery import metadata

    info = Path(str(getattr(dist, "_path", "")))
    read = _Read(file=f"{info.name}/entry_points.txt")
    _headers(folders.read(info / "METADATA") or folders.read(info / "PKG-INFO"), read)
    if not read.requires:
        read.requires = list(dist.requires or [])
    read.lines = list(entry_points.parse(folders.read(info / "entry_points.txt") or ""))
    root = metadata._editable_root(info)
    if root is None and info.name.endswith(".egg-info"):
        root = str(info.parent)
    if root is not None and Path(root).is_dir():
        source = _read_source(Path(root))
        package = Package.in_folder(Path(root), source.prefix, source_tree=True)
    else:
        recorded = metadata.Dist(read.name, read.version, str(info.parent), str(info)).files() or ()
        names = [n for n in recorded if not n.startswith(("..", "/")) and "__pycache__" not in n]
        package = Package(FolderFiles(str(info.parent), names))
    return _subject(read, "installed", info.parent, package, fallback=info.name)


# -- a source folder


def _of_folder(path: Path) -> Subject:
    root = path.resolve()
    if (root / "__init__.py").is_file() and not _has_project(root):
        return Subject(root.name, "?", "folder", str(root), _package_alone(root))
    read = _read_source(root)
    package = Package.in_folder(root, read.prefix, source_tree=True)
    return _subject(read, "folder", root, package, fallback=root.name)


def _has_project(root: Path) -> bool:
    return any((root / name).is_file() for name in ("pyproject.toml", "setup.cfg", "setup.py"))


def _read_source(root: Path) -> _Read:
    read = _Read()
    _from_toml(root, read)
    _from_cfg(root, read)
    _from_setup_py(root, read)
    if not read.prefix and (root / "src").is_dir() and not (root / "src" / "__init__.py").exists():
        read.prefix = "src"
    return read


def _declare(read: _Read, group: object, entries: Any) -> None:
    if isinstance(entries, dict):
        entries = [f"{name} = {value}" for name, value in entries.items()]
    if isinstance(entries, str):
        entries = entries.splitlines()
    text = "\n".join(str(e) for e in entries) if isinstance(entries, list) else ""
    read.lines += entry_points.parse(f"[{group}]\n{text}")


def _from_toml(root: Path, read: _Read) -> None:
    text = folders.read(root / "pyproject.toml")
    if text is None:
        return
    try:
        tomllib: Any = importlib.import_module("tomllib")
    except ImportError:  # Python 3.10
        if "[project" in text:
            said = "pyproject.toml cannot be read by this Python, which has no tomllib"
            read.findings.append(finding("metadata-unreadable", said, Place("pyproject.toml")))
        return
    try:
        told = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as err:
        read.findings.append(
            finding("metadata-unreadable", f"pyproject.toml is no TOML: {err}", Place("pyproject.toml"))
        )
        return
    project = told.get("project")
    if isinstance(project, dict):
        read.file, read.name = "pyproject.toml", str(project.get("name") or read.name)
        read.version = str(project.get("version") or read.version)
        read.requires += [str(r) for r in project.get("dependencies") or [] if isinstance(r, str)]
        groups = project.get("entry-points")
        for group, entries in groups.items() if isinstance(groups, dict) else ():
            _declare(read, group, entries)
    tool = told.get("tool")
    options = tool.get("setuptools") if isinstance(tool, dict) else None
    where = options.get("package-dir") if isinstance(options, dict) else None
    if isinstance(where, dict) and isinstance(where.get(""), str):
        read.prefix = str(where[""]).strip("./")


def _from_cfg(root: Path, read: _Read) -> None:
    text = folders.read(root / "setup.cfg")
    if text is None:
        return
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(text)
    except configparser.Error as err:
        said = f"setup.cfg cannot be read: {str(err).splitlines()[0]}"
        read.findings.append(finding("metadata-unreadable", said, Place("setup.cfg")))
        return

    def option(section: str, name: str) -> str:
        return parser.get(section, name, fallback="")

    if parser.has_section("metadata") and option("metadata", "name"):
        read.file, read.name = "setup.cfg", option("metadata", "name").strip()
        read.version = option("metadata", "version").strip() or read.version
    read.requires += [line.strip() for line in option("options", "install_requires").splitlines() if line.strip()]
    if parser.has_section("options.entry_points"):
        read.file = "setup.cfg"
        for group, entries in parser.items("options.entry_points"):
            _declare(read, group, entries)
    for line in option("options", "package_dir").splitlines():
        key, equals, value = line.partition("=")
        if equals and not key.strip():
            read.prefix = value.strip().strip("./")


def _from_setup_py(root: Path, read: _Read) -> None:
    """Read the literals of a call of ``setup``; the file is never run."""
    import ast

    from opdock.testing.contract.source import parse

    text = folders.read(root / "setup.py")
    if text is None:
        return
    try:
        tree = parse(text.encode())
    except Unreadable as err:
        read.findings.append(finding("metadata-unreadable", f"setup.py cannot be read: {err}", Place("setup.py")))
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "setup":
            given = {k.arg: _literal(k.value) for k in node.keywords}
            read.file = read.file or "setup.py"
            read.name = read.name or str(given.get("name") or "")
            read.requires += [str(r) for r in given.get("install_requires") or []]
            groups = given.get("entry_points")
            for group, entries in groups.items() if isinstance(groups, dict) else ():
                _declare(read, group, entries)


def _literal(node: Any) -> Any:
    import ast

    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
