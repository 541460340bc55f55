"""Other people's kernels, to be measured beside ours: found in a folder, unpacked, and imported where they can be.

The folder holds wheels (``*.whl``: Liger-Kernel, FlagGems and what it requires) and vLLM's extension for torch's stable
ABI (``_C_stable_libtorch*.so``, or the same compressed, ``.so.xz``; the version may stand in the name). None of it is
part of this repository.
"""

from __future__ import annotations

import atexit
import importlib
import lzma
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

EXTENSION = "_C_stable_libtorch"
WHEELS: Mapping[str, tuple[str, str]] = {
    "liger": ("liger_kernel.ops.rms_norm", "liger_kernel"),
    "flaggems": ("flag_gems", "flag_gems"),
}
"""Name of a peer -> (module to import, beginning of its wheel's name)."""

NEEDED = ("sqlalchemy",)
"""Beginnings of the names of wheels that peers import."""


@dataclass
class Peers:
    """What was found.

    Args:
        modules: a peer's name to what its functions are in; ``vllm_c`` is there with None, its ops are torch ops.
        versions: a peer's name to its version, from the name of its wheel.
        absent: a peer's name to why it is left out.
    """

    modules: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)


def load(folder: Path | None) -> Peers:
    """Unpack what ``folder`` holds into a folder for this process, import it, and say what is missing."""
    found = Peers()
    if folder is None or not folder.is_dir():
        why = "no folder of peers was given" if folder is None else "there is no such folder"
        found.absent = dict.fromkeys(("vllm_c", *WHEELS), why)
        return found
    unpacked = Path(tempfile.mkdtemp(prefix="peers-"))
    atexit.register(shutil.rmtree, unpacked, ignore_errors=True)
    _load_extension(folder, unpacked, found)  # first: FlagGems defines some of its ops where they are missing
    # What else lies there may be a package that is imported from elsewhere, ours among them.
    beginnings = (*(beginning for _, beginning in WHEELS.values()), *NEEDED)
    wheels = sorted(w for w in folder.glob("*.whl") if w.name.lower().startswith(beginnings))
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked)
    sys.path.append(str(unpacked))
    for name, (module, beginning) in WHEELS.items():
        wheel = next((w for w in wheels if w.name.startswith(beginning)), None)
        if wheel is None:
            found.absent[name] = f"no {beginning}*.whl in the folder"
            continue
        try:
            found.modules[name] = importlib.import_module(module)
            found.versions[name] = wheel.name.split("-")[1]
        except Exception as err:  # noqa: BLE001 - somebody else's code: left out, in words
            found.absent[name] = f"cannot be imported: {type(err).__name__}: {err}"
    return found


def _load_extension(folder: Path, unpacked: Path, found: Peers) -> None:
    file = next(iter(sorted(folder.glob(f"{EXTENSION}*.so"))), None)
    packed = next(iter(sorted(folder.glob(f"{EXTENSION}*.so.xz"))), None)
    if file is None and packed is None:
        found.absent["vllm_c"] = f"no {EXTENSION}*.so and no .so.xz in the folder"
        return
    if file is None and packed is not None:
        file = unpacked / packed.stem
        file.write_bytes(lzma.decompress(packed.read_bytes()))
    try:
        torch.ops.load_library(str(file))
        found.modules["vllm_c"] = None
        found.versions["vllm_c"] = _version_in(file.name)
    except (OSError, RuntimeError) as err:
        found.absent["vllm_c"] = f"cannot be loaded: {str(err).splitlines()[0].replace(str(unpacked), '')}"


def _version_in(name: str) -> str:
    found = re.search(r"\d+\.\d+\.\d+", name)
    return found.group() if found else "unknown"
