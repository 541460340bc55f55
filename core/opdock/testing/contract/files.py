"""The files of a package, in a folder, a wheel or an installed distribution. Nothing is unpacked or run."""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

MOST_BYTES = 8 << 20
"""The largest source or metadata file that is read, in bytes."""
MOST_FILES = 50_000

_SKIPPED = {"tests", "test", "testing", "docs", "build", "dist", "examples", "benchmarks", "node_modules", "venv"}
EXTENSIONS = (".so", ".pyd", ".dylib")


class Unreadable(Exception):
    """A file cannot be read; the text says why."""


class Files:
    """Named files that can be read; ``names`` are POSIX paths relative to ``root``."""

    def __init__(self, root: str, names: Iterable[str]) -> None:
        self.root = root
        self.names = tuple(names)[:MOST_FILES]

    def read(self, name: str) -> bytes:
        """Return the content; Unreadable where there is none to have."""
        raise NotImplementedError


class FolderFiles(Files):
    """Files below a folder."""

    def read(self, name: str) -> bytes:
        """Return the content of a regular file."""
        path = Path(self.root, name)
        try:
            found = path.stat()
            if not stat.S_ISREG(found.st_mode):
                raise Unreadable("it is not a regular file")
            if found.st_size > MOST_BYTES:
                raise Unreadable(f"it has {found.st_size} bytes, more than {MOST_BYTES}")
            return path.read_bytes()
        except (OSError, ValueError) as err:
            raise Unreadable(str(getattr(err, "strerror", None) or err)) from None


class WheelFiles(Files):
    """Files in a wheel; those of its ``.data`` schemes stand where they would be installed."""

    def __init__(self, path: Path) -> None:
        try:
            self._wheel = zipfile.ZipFile(path)
            inside = {i.filename: i.file_size for i in self._wheel.infolist() if not i.is_dir()}
        except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as err:
            raise Unreadable(f"{path} is no wheel that can be read: {err}") from None
        self._sizes = inside
        self._real = {_installed_name(name): name for name in inside}
        super().__init__(str(path), sorted(self._real))

    def read(self, name: str) -> bytes:
        """Return the content of a member."""
        real = self._real.get(name, name)
        if self._sizes.get(real, 0) > MOST_BYTES:
            raise Unreadable(f"it has {self._sizes[real]} bytes, more than {MOST_BYTES}")
        try:
            with self._wheel.open(real) as member:
                data = member.read(MOST_BYTES + 1)
        except (OSError, KeyError, zipfile.BadZipFile, ValueError, RuntimeError, NotImplementedError, EOFError) as err:
            raise Unreadable(str(err)) from None
        except Exception as err:  # noqa: BLE001 - zlib.error, lzma.LZMAError: what a damaged member raises
            raise Unreadable(f"{type(err).__name__}: {err}") from None
        if len(data) > MOST_BYTES:
            raise Unreadable(f"it has more than {MOST_BYTES} bytes")
        return data


def _installed_name(name: str) -> str:
    parts = PurePosixPath(name).parts
    if len(parts) > 2 and parts[0].endswith(".data") and parts[1] in ("purelib", "platlib"):
        return "/".join(parts[2:])
    return name


def walk(root: Path, *, source_tree: bool) -> Iterator[str]:
    """Yield the files below ``root`` that matter, relative to it; links to folders are not followed.

    Args:
        root: a folder.
        source_tree: whether folders that a project does not install, tests for example, are left out.
    """
    for folder, folders, names in os.walk(root, followlinks=False):
        top = Path(folder) == root
        folders[:] = sorted(
            d
            for d in folders
            if not d.startswith(".")
            and d != "__pycache__"
            and not d.endswith((".egg-info", ".dist-info"))
            and not (source_tree and d in _SKIPPED and (top or not Path(folder, "__init__.py").is_file()))
            and not (source_tree and Path(folder, d, "pyvenv.cfg").is_file())
        )
        for name in sorted(names):
            if name.endswith((".py", *EXTENSIONS)):
                yield Path(folder, name).relative_to(root).as_posix()


class UnderPrefix(Files):
    """Files of a source tree whose import root is a folder of it: ``src/pkg/a.py`` is ``pkg/a.py``."""

    def __init__(self, inner: Files, prefix: str) -> None:
        self._inner, self._prefix = inner, prefix
        lead = prefix + "/" if prefix else ""
        super().__init__(inner.root, [n[len(lead) :] for n in inner.names if n.startswith(lead)])

    def read(self, name: str) -> bytes:
        """Return the content."""
        return self._inner.read(self.shown(name))

    def shown(self, name: str) -> str:
        """Return the name relative to the source tree's own root."""
        return f"{self._prefix}/{name}" if self._prefix else name
