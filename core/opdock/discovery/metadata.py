"""The scan: every plugin that installed metadata declares. It imports nothing and raises nothing."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from urllib.parse import unquote, urlparse

from opdock.discovery import folders
from opdock.discovery.entry_points import GENERAL_GROUP, GROUPS, HOOK_GROUP, PLATFORM_GROUP
from opdock.discovery.folders import Folder, normalise, read
from opdock.errors import printable

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
            text = read(Path(self.metadata_path, record))
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
        return printable(f"{self.name}  {self.dist.name} {self.dist.version}  {self.value}")


@dataclass(frozen=True)
class Scan:
    """Every entry point of our groups, sorted by group and name, and what is wrong with the metadata, in words."""

    candidates: tuple[Candidate, ...]
    issues: tuple[str, ...]

    def candidates_of(self, group: str) -> list[Candidate]:
        """Return the candidates of one group."""
        return [c for c in self.candidates if c.group == group]


def scan(path: Sequence[str] | None = None, *, cwd: str | None = None) -> Scan:
    """Read the metadata on the path.

    Args:
        path: None means ``sys.path``.
        cwd: None means the current folder; what is found only there is reported and marked.
    """
    issues: list[str] = []
    projects: dict[str, list[Folder]] = {}
    for folder in folders.find(sys.path if path is None else path, _cwd() if cwd is None else cwd, issues):
        projects.setdefault(folder.project, []).append(folder)
    candidates: list[Candidate] = []
    for project, found in projects.items():
        chosen = folders.choose(found, issues)
        for folder in [chosen] if chosen.entries else found:
            folders.report_lines(folder, issues)
        if not chosen.entries:
            continue
        if chosen.in_cwd:
            issues.append(
                f"{project} is found only through the current folder ({chosen.path}): it is not loaded. Install it, "
                "or run from another folder."
            )
        dist = _dist(chosen, issues)
        candidates += [Candidate(group, name, value, dist) for group, name, value in chosen.entries]
    candidates.sort(key=lambda c: (GROUPS.index(c.group), c.name, c.dist.name, c.value))
    return Scan(tuple(candidates), tuple(dict.fromkeys(issues)))


def _cwd() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # it was deleted
        return "/"


def _dist(folder: Folder, issues: list[str]) -> Dist:
    text = next((t for name in ("METADATA", "PKG-INFO") if (t := read(folder.path / name)) is not None), "")
    headers = HeaderParser().parsestr(text.partition("\n\n")[0])
    stem, version = folders.split_stem(folder.path.name)
    name = " ".join(str(headers.get("Name") or stem).split())  # a header may go on in the next line
    wanted = [str(line) for line in headers.get_all("Requires-Dist") or _egg_requirements(folder.path)]
    opdock, others = _requirements(name, wanted, issues)
    return Dist(
        name,
        " ".join(str(headers.get("Version") or version).split()),
        str(folder.path.parent),
        str(folder.path),
        opdock,
        others,
        _editable_root(folder.path),
        folder.in_cwd,
    )


def _egg_requirements(path: Path) -> list[str]:
    """Return the requirements of an egg-info that every install has, with their markers."""
    wanted, marker = [], ""
    for raw in (read(path / "requires.txt") or "").splitlines():
        line = raw.strip()
        if line.startswith("["):
            extra, _, marker = line.strip("[]").partition(":")
            marker = f'extra == "{extra}"' if extra else marker
        elif line:
            wanted.append(f"{line} ; {marker}" if marker else line)
    return wanted


def _requirements(name: str, wanted: Sequence[str], issues: list[str]) -> tuple[str | None, tuple[str, ...]]:
    """Return the specifier of the requirement on opdock, if any, and the names of all requirements."""
    from packaging.requirements import Requirement

    opdock: list[str] | None = [] if normalise(name) == "opdock" else None
    names = []
    for text in wanted:
        try:
            requirement = Requirement(text)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
        except Exception:  # noqa: BLE001 - several kinds, by the version of packaging
            issues.append(f"{name}: the requirement {text!r} cannot be read")
            continue
        names.append(requirement.name)
        if normalise(requirement.name) == "opdock":
            opdock = [*(opdock or []), *filter(None, [str(requirement.specifier)])]
    return None if opdock is None else ",".join(opdock), tuple(names)


def _editable_root(path: Path) -> str | None:
    try:
        told = json.loads(read(path / "direct_url.json") or "{}")
        if told.get("dir_info", {}).get("editable"):
            return unquote(urlparse(told["url"]).path)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None
    return None


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution, None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
