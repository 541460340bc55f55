"""``opdock new``: write a platform package that works, from one of the two examples."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from opdock.cli import names, options
from opdock.errors import ConfigError

SCHEMA = "opdock.new/1"


@dataclass(frozen=True)
class Template:
    """An example: its name, and the commands that install a package like it."""

    name: names.Name
    install: tuple[str, ...]

    def folder(self, device: str) -> Path:
        """Return where it is: a link to the examples in a checkout, files in an installed opdock."""
        return Path(__file__).with_name("scaffold") / device


TEMPLATES = {
    "cpu": Template(names.Name(("demo", "cpu")), ("pip install -e .",)),
    # It is built against the PyTorch that is installed, with the setuptools that is installed.
    "privateuse1": Template(
        names.Name(("demo", "accel")), ("pip install 'setuptools>=77'", "pip install --no-build-isolation -e .")
    ),
}
_SKIPPED_FOLDERS = re.compile(
    r"__pycache__|build|dist|.*\.egg-info|\.(nox|venv|git|ruff_cache|pytest_cache|mypy_cache|hypothesis)"
)
_SKIPPED_FILES = re.compile(r".*\.(so|o|pyc|pyd|orig|rej)|\.coverage.*")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("name", metavar="NAME", help="of the platform, for example acme; the package is opdock-acme")
    parser.add_argument(
        "--device",
        choices=sorted(TEMPLATES),
        default="cpu",
        help="cpu: its tensors are CPU tensors (the default); privateuse1: a PyTorch device of its own, in C++",
    )
    parser.add_argument(
        "--into", metavar="FOLDER", help="where the package's folder is made; the current one without it"
    )
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Check everything, then write the package."""
    from opdock.cli import render

    template = TEMPLATES[args.device]
    name = names.parse(args.name)
    names.check_free(name, own_device=args.device == "privateuse1")
    target = _target(Path(args.into or "."), f"{names.PREFIX}-{name.dashed}")
    files = renamed_tree(template.folder(args.device), template.name, name)
    write(files, target)
    told = {
        "schema": SCHEMA,
        "name": name.dashed,
        "device": args.device,
        "folder": str(target),
        "files": sorted(files),
        "next": [
            f"cd {shlex.quote(str(target))}",
            *template.install,
            f"{name.upper}_DEVICES=1 opdock doctor",
            "python -m pytest",
        ],
    }
    if args.json:
        render.as_json(told)
        return 0
    render.line(f"Wrote {target}:")
    for file in told["files"]:
        render.line(f"  {file}")
    render.line("Next:")
    for command in told["next"]:
        render.line(f"  {command}")
    return 0


def renamed_tree(folder: Path, old: names.Name, new: names.Name) -> dict[str, str]:
    """Return path to text of each file under ``folder``, renamed in both; what a build or a tool left is not taken.

    Raises: ConfigError if the template is not there.
    """
    found = {}
    for path in _files(folder):
        relative = path.relative_to(folder).as_posix()
        found[rename(relative, old, new)] = rename(path.read_text(encoding="utf-8"), old, new)
    if not found:
        raise ConfigError(
            "This installation of opdock has no templates.",
            why=f"there are no files under {folder}",
            remedy="pip install --force-reinstall opdock",
        )
    return found


def rename(text: str, old: names.Name, new: names.Name) -> str:
    """Return ``text`` with each way of writing ``old`` replaced by the same way of writing ``new``, in one pass."""
    forms = dict(zip(old.forms(), new.forms(), strict=True))
    return re.sub("|".join(map(re.escape, forms)), lambda match: forms[match[0]], text)


def _files(folder: Path) -> Iterator[Path]:
    for where, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not _SKIPPED_FOLDERS.fullmatch(name)]
        yield from (Path(where, name) for name in files if not _SKIPPED_FILES.fullmatch(name))


def _target(parent: Path, folder: str) -> Path:
    """Return the folder to write, which does not exist or is empty.

    Raises: ConfigError for anything else: nothing is ever overwritten.
    """
    target = parent / folder
    if not parent.is_dir():
        raise _in_the_way(parent, "is no folder", f"mkdir -p {shlex.quote(str(parent))}")
    if target.is_symlink():
        raise _in_the_way(target, "is a symbolic link, which is not followed")
    if target.exists() and not target.is_dir():
        raise _in_the_way(target, "is a file")
    if target.is_dir() and any(target.iterdir()):
        raise _in_the_way(target, "is there already and not empty")
    return target


def _in_the_way(
    path: Path, why: str, remedy: str = "move it away, choose another NAME or use --into FOLDER."
) -> ConfigError:
    return ConfigError(f"{path} {why}.", why="Nothing is overwritten.", remedy=remedy)


def write(files: dict[str, str], target: Path) -> None:
    """Write the files into ``target``, all or nothing: into a folder beside it, which is then given its name.

    Raises: ConfigError if the place cannot be written.
    """
    try:
        beside = tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent)
        try:
            made = Path(beside, target.name)
            for name, text in files.items():
                file = made / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8", newline="\n")
                if text.startswith("#!"):
                    file.chmod(file.stat().st_mode | 0o111)
            made.rename(target)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    except OSError as err:
        raise ConfigError(
            f"{target} cannot be written.", why=f"{type(err).__name__}: {err}", remedy="use --into FOLDER."
        ) from err
