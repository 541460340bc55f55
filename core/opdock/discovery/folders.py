"""The metadata folders on the path, and which of several speaks for a project."""

from __future__ import annotations

import os
import re
import site
import stat
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from opdock.discovery import entry_points
from opdock.discovery.entry_points import GROUPS, Line

SUFFIXES = (".dist-info", ".egg-info")
_STEM = re.compile(r"(?P<name>.+?)-(?P<version>v?\d[^-]*)(-py\d.*)?")
_WORTH_PARSING = ("vllm", "opdock", "platform_plugin", "general_plugin")


def normalise(name: str) -> str:
    """Return the name under which a project is the same however it is written."""
    return re.sub(r"[-_.]+", "-", name).lower()


def split_stem(folder: str) -> tuple[str, str]:
    """Return name and version of a metadata folder's name, the version "?" if it has none."""
    stem = folder.rpartition(".")[0]
    found = _STEM.fullmatch(stem)
    return (found["name"], found["version"]) if found else (stem, "?")


def read(path: Path) -> str | None:
    """Return the text of a metadata file, None if there is none that can be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None
    except OSError:
        return None


@dataclass(frozen=True)
class Folder:
    """A metadata folder, with the lines of its entry points that may concern opdock."""

    path: Path
    in_cwd: bool
    lines: tuple[Line, ...]

    @property
    def project(self) -> str:
        """The project's normalised name."""
        return normalise(split_stem(self.path.name)[0])

    @cached_property
    def complete(self) -> bool:
        """Whether it has metadata besides its entry points; an interrupted uninstall leaves none."""
        return any(_size(self.path / name) > 0 for name in ("METADATA", "PKG-INFO"))

    @cached_property
    def entries(self) -> frozenset[tuple[str, str, str]]:
        """Group, name and value of the entry points in the groups that opdock reads."""
        return frozenset((e.group, e.name, e.value) for e in self.lines if e.group in GROUPS and e.name and e.value)


def find(path: Sequence[str], cwd: str, issues: list[str]) -> Iterator[Folder]:
    """Yield the metadata folders on the path, each once, in the order of the path."""
    seen: set[str] = set()
    here = os.path.realpath(cwd)
    installed = {os.path.realpath(p) for p in _install_folders()}
    for entry in dict.fromkeys(str(e) for e in path):
        try:
            real = os.path.realpath(Path(cwd, entry))
            with os.scandir(real) as entries:
                names = sorted(e.name for e in entries if e.name.endswith(SUFFIXES))
        except (OSError, ValueError):
            continue  # a zip file, or an entry that names no folder
        in_cwd = real == here and real not in installed and real not in _pth_entries(installed)
        for name in names:
            resolved = os.path.realpath(f"{real}/{name}")
            if resolved in seen:
                continue
            seen.add(resolved)
            folder = Folder(Path(real, name), in_cwd, _lines(Path(real, name), issues))
            if name[0] != "~":  # how pip renames what it is about to remove
                yield folder
            elif folder.entries:
                issues.append(f"{folder.path} is left over from an interrupted pip and is not read: delete it.")


def choose(folders: list[Folder], issues: list[str]) -> Folder:
    """Return the folder that speaks for a project: installed, complete, and with entry points of ours."""

    def rank(folder: Folder) -> tuple[bool, bool, bool]:
        ours = bool(folder.entries)
        return ours and folder.complete, ours, not folder.in_cwd

    installed = [f for f in folders if not f.in_cwd and f.entries and f.complete]
    best = max(installed or folders, key=rank)  # the first of the best
    equals = [f for f in folders if f.path.parent == best.path.parent and rank(f) == rank(best)]
    if len(equals) > 1:
        best = max(equals, key=lambda f: _version_key(f.path.name))
    if len(folders) > 1 and any(f.entries for f in folders):
        empty = sum(not f.entries for f in folders)
        note = f" ({empty} without entry points for opdock)" if empty else ""
        agree = len({f.entries for f in folders}) == 1
        issues.append(
            f"{best.project} has {len(folders)} metadata folders{note}: {', '.join(str(f.path) for f in folders)}, "
            f"using {best.path}." + (" They agree." if agree else " Reinstall it to remove the stale ones.")
        )
    return best


def report_lines(folder: Folder, issues: list[str]) -> None:
    """Report the malformed lines of groups that concern opdock, and the groups that are misspelt."""
    for line in folder.lines:
        right = entry_points.misspelt(line.group)
        if line.value is None and (right or line.group in GROUPS):
            fault = "is no 'name = value' and is skipped" if line.name or line.text[0] == "=" else "has no closing ]"
            issues.append(f"{folder.project}: a line in [{line.group}] {fault}: {line.text!r} ({folder.path})")
        if right and not line.name and line.text[0] == "[":
            issues.append(
                f"{folder.project} declares the group [{line.group}], which nothing reads. Did you mean [{right}]?"
            )


def _lines(folder: Path, issues: list[str]) -> tuple[Line, ...]:
    file = folder / "entry_points.txt"
    try:
        if not stat.S_ISREG(file.stat().st_mode):  # a pipe would block, a device never ends
            raise OSError("not a regular file")
        data = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as err:
        issues.append(f"{file} cannot be read: {err.strerror or err}")
        return ()
    text = data.decode("utf-8", "backslashreplace")
    if not any(word in text.lower() for word in _WORTH_PARSING):
        return ()
    lines = tuple(entry_points.parse(text))
    try:
        data.decode()
    except UnicodeDecodeError as err:
        if any(line.group in GROUPS for line in lines):
            issues.append(f"{file} is not UTF-8 (byte {err.start}); what can be read of it is used")
    return lines


def _install_folders() -> list[str]:
    folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    return [f for f in (*folders, site.getusersitepackages(), *site.getsitepackages()) if f]


def _pth_entries(installed: set[str]) -> set[str]:
    """Return the folders that ``.pth`` files name: on the path wherever Python is started."""
    found = set()
    for folder in installed:
        for file in Path(folder).glob("*.pth"):
            try:
                lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
            except OSError:
                continue
            named = [line.strip() for line in lines if line.strip() and "\0" not in line]
            found |= {os.path.realpath(Path(folder, line)) for line in named}
    return found


def _version_key(folder: str) -> tuple[object, ...]:
    from packaging.version import InvalidVersion, Version

    text = split_stem(folder)[1]
    try:
        return (1, Version(text))
    except InvalidVersion:
        return (0, text)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
