"""The scan: every plugin that installed metadata declares. It imports nothing and raises nothing."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import site
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from urllib.parse import unquote, urlparse

from opdock.discovery import entry_points
from opdock.discovery.entry_points import GENERAL_GROUP, GROUPS, HOOK_GROUP, PLATFORM_GROUP

__all__ = ["GENERAL_GROUP", "HOOK_GROUP", "PLATFORM_GROUP", "Candidate", "Dist", "Scan", "scan"]


@dataclass(frozen=True)
class Dist:
    """An installed distribution, as its metadata describes it.

    Args:
        name: as its author writes it.
        version: as it is written; "?" if there is none.
        location: the folder that holds the metadata folder.
        metadata_path: the ``.dist-info`` or ``.egg-info`` folder.
        requires_opdock: the version specifier of its requirement on opdock, "" for any version, None when it
            has none: it is foreign.
        requires: names of what it requires without extras.
        editable_root: the source folder of an editable install.
        only_in_cwd: whether it is found only because the current folder is on the path.
    """

    name: str
    version: str
    location: str
    metadata_path: str
    requires_opdock: str | None = None
    requires: tuple[str, ...] = ()
    editable_root: str | None = None
    only_in_cwd: bool = False

    def files(self) -> tuple[str, ...] | None:
        """Return the recorded files, relative to ``location``; None where nothing is recorded."""
        for record in ("RECORD", "SOURCES.txt"):
            text = _read(Path(self.metadata_path, record))
            if text is not None:
                return tuple(line.rsplit(",", 2)[0] if record == "RECORD" else line for line in text.splitlines())
        return None


@dataclass(frozen=True)
class Candidate:
    """One entry point of one of our groups."""

    group: str
    name: str
    value: str
    dist: Dist

    @property
    def label(self) -> str:
        """Name, distribution, version and target in one line."""
        return f"{self.name}  {self.dist.name} {self.dist.version}  {self.value}"


@dataclass(frozen=True)
class Scan:
    """Every entry point of our groups, sorted by group and name, and what is wrong with the metadata, in words."""

    candidates: tuple[Candidate, ...]
    issues: tuple[str, ...]

    def candidates_of(self, group: str) -> list[Candidate]:
        """Return the candidates of one group."""
        return [c for c in self.candidates if c.group == group]


@dataclass(frozen=True)
class _Folder:
    """A metadata folder, with the lines of its entry points."""

    project: str
    path: Path
    in_cwd: bool
    lines: tuple[entry_points.Line, ...]
    has_metadata: bool

    @property
    def ours(self) -> bool:
        return any(line.group in GROUPS and line.value for line in self.lines)


def scan(path: Sequence[str] | None = None, *, cwd: str | None = None) -> Scan:
    """Read the metadata on the path.

    Args:
        path: None means ``sys.path``.
        cwd: None means the current folder; what is found only there is reported and marked.
    """
    issues: list[str] = []
    projects: dict[str, list[_Folder]] = {}
    for folder in _folders(sys.path if path is None else path, str(Path.cwd()) if cwd is None else cwd, issues):
        projects.setdefault(folder.project, []).append(folder)
    candidates: list[Candidate] = []
    for folders in projects.values():
        chosen = _choose(folders, issues)
        _report_lines(chosen, issues)
        if chosen.ours:
            dist = _dist(chosen, issues)
            entries = {(e.group, e.name, e.value) for e in chosen.lines if e.group in GROUPS and e.name and e.value}
            candidates += [Candidate(group, name, value or "", dist) for group, name, value in entries]
    candidates.sort(key=lambda c: (GROUPS.index(c.group), c.name, c.dist.name, c.value))
    return Scan(tuple(candidates), tuple(issues))


def _folders(path: Sequence[str], cwd: str, issues: list[str]) -> list[_Folder]:
    found, seen = [], set()
    installed = {os.path.realpath(p) for p in _install_folders()}
    here = os.path.realpath(cwd)
    for entry in path:
        real = os.path.realpath(entry or cwd)
        in_cwd = real == here and real not in installed
        try:
            with os.scandir(real) as entries:
                names = sorted(e.name for e in entries if e.name.endswith((".dist-info", ".egg-info")))
        except OSError:
            continue  # no folder: a zip file, or an entry of the path that does not exist
        for name in names:
            folder = os.path.realpath(f"{real}/{name}")
            if folder not in seen:
                seen.add(folder)
                found.append(_read_folder(Path(folder), name, in_cwd=in_cwd, issues=issues))
    return [f for f in found if f is not None]


def _install_folders() -> list[str]:
    folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    folders += getattr(site, "getsitepackages", list)()
    return [f for f in folders if f]


def _read_folder(path: Path, name: str, *, in_cwd: bool, issues: list[str]) -> _Folder | None:
    project = re.sub(r"[-_.]+", "-", name.rsplit(".", 1)[0].split("-", maxsplit=1)[0]).lower()
    text = None
    try:
        text = (path / "entry_points.txt").read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, UnicodeDecodeError) as err:
        issues.append(f"{path / 'entry_points.txt'} cannot be read: {type(err).__name__}")
    lines = tuple(entry_points.parse(text)) if text and ("vllm" in text or "opdock" in text) else ()
    has_metadata = not path.is_dir() or (path / "METADATA").is_file() or (path / "PKG-INFO").is_file()
    return _Folder(project, path, in_cwd, lines, has_metadata)


def _choose(folders: list[_Folder], issues: list[str]) -> _Folder:
    """Return the folder that speaks for a project: complete, installed, and with entry points of ours."""
    best = max(folders, key=lambda f: (f.ours and f.has_metadata, not f.in_cwd, f.ours, -folders.index(f)))
    installed = [f for f in folders if f.ours and f.has_metadata and not f.in_cwd]
    best = installed[0] if installed else best
    if len(folders) > 1 and any(f.ours for f in folders):
        empty = sum(not f.ours for f in folders)
        note = f", {empty} of them without entry points" if empty else ""
        others = ", ".join(str(f.path) for f in folders)
        issues.append(
            f"{best.project} has {len(folders)} metadata folders{note}: {others}; using {best.path}. "
            f"Reinstall it to remove the stale ones."
        )
    if best.ours and best.in_cwd:
        issues.append(
            f"{best.project} is found only through the current folder: it is not loaded. Install it, "
            "or run from another folder."
        )
    return best


def _report_lines(folder: _Folder, issues: list[str]) -> None:
    for line in folder.lines:
        if line.value is None and (line.group in GROUPS or entry_points.misspelt(line.group)):
            issues.append(
                f"{folder.project}: a line in [{line.group}] is no 'name = value' and is skipped: {line.name}"
            )
        elif not line.name and (right := entry_points.misspelt(line.group)):
            issues.append(
                f"{folder.project} declares the group [{line.group}], which nothing reads. Did you mean [{right}]?"
            )


def _dist(folder: _Folder, issues: list[str]) -> Dist:
    text = next((t for name in ("METADATA", "PKG-INFO") if (t := _read(folder.path / name)) is not None), "")
    headers = HeaderParser().parsestr(text.partition("\n\n")[0])
    stem = folder.path.name.rsplit(".", 1)[0]
    name = headers.get("Name") or stem.split("-")[0]
    version = headers.get("Version") or (stem.split("-")[1] if "-" in stem else "?")
    wanted = headers.get_all("Requires-Dist") or _egg_requirements(folder.path)
    opdock, others = _requirements(name, wanted, issues)
    return Dist(
        name,
        version,
        str(folder.path.parent),
        str(folder.path),
        opdock,
        others,
        _editable_root(folder.path),
        folder.in_cwd,
    )


def _egg_requirements(path: Path) -> list[str]:
    text = _read(path / "requires.txt") or ""
    return [line for line in text.partition("\n[")[0].splitlines() if line.strip()]


def _requirements(name: str, wanted: Sequence[str], issues: list[str]) -> tuple[str | None, tuple[str, ...]]:
    """Return the specifier of the requirement on opdock, if any, and the names of all requirements."""
    from packaging.requirements import InvalidRequirement, Requirement

    opdock, names = None, []
    for text in wanted:
        try:
            requirement = Requirement(text)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
        except (InvalidRequirement, KeyError, ValueError):
            issues.append(f"{name}: the requirement {text!r} cannot be read")
            continue
        names.append(requirement.name)
        if re.sub(r"[-_.]+", "-", requirement.name).lower() == "opdock":
            opdock = str(requirement.specifier)
    if re.sub(r"[-_.]+", "-", name).lower() == "opdock":
        opdock = ""
    return opdock, tuple(names)


def _editable_root(path: Path) -> str | None:
    text = _read(path / "direct_url.json")
    try:
        told = json.loads(text) if text else {}
        if told.get("dir_info", {}).get("editable"):
            return unquote(urlparse(told["url"]).path)
    except (ValueError, KeyError, AttributeError):
        return None
    return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution, None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
