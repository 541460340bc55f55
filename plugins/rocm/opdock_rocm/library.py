"""The compiled kernels, ``_C.abi3.so``: loading them, or knowing why not.

They are opdock-cuda's sources, compiled as HIP. Importing the file registers the ops ``torch.ops.opdock_rocm.*``; it
starts no driver.
"""

from __future__ import annotations

import functools
import importlib
import json
from pathlib import Path

FILE, FACTS = "_C.abi3.so", "_C.json"

NOT_BUILT = (
    "built without HIP kernels: this package was installed as pure Python; in a checkout, OPDOCK_ROCM_BUILD=1 pip "
    "install --no-build-isolation builds them, with hipcc"
)


@functools.cache
def why_not() -> str:
    """Return why the kernels cannot be loaded, "" where they are; the linker's words where it has any."""
    import torch

    reason = unfit(torch.version.hip, built=Path(__file__).with_name(FILE).is_file())
    if reason:
        return reason
    try:
        importlib.import_module("opdock_rocm._C")
    except (ImportError, OSError, RuntimeError) as err:
        return f"{FILE} cannot be loaded: {err}"
    importlib.import_module("opdock_rocm.fakes")
    return ""


def unfit(hip: str | None, *, built: bool) -> str:
    """Return why the kernels cannot be loaded whatever the linker says, "" if they may.

    Args:
        hip: as ``torch.version.hip``.
        built: whether the file is there.
    """
    if not built:
        return NOT_BUILT
    return "" if hip else "PyTorch is built without HIP"


def why_not_on(gfx: str) -> str:
    """Return why the kernels do not run on a GPU of this architecture, "" where they do or it is not known."""
    reason = why_not()
    file = Path(__file__).with_name(FACTS)
    if reason or not gfx or not file.is_file():
        return reason
    return missing(json.loads(file.read_text(encoding="utf-8"))["architectures"], gfx)


def missing(architectures: list[str], gfx: str) -> str:
    """Return why code for ``architectures`` does not run on ``gfx``: AMD's is for one architecture alone."""
    if gfx in architectures:
        return ""
    return f"the kernels are built for {', '.join(architectures)}, and the GPU is {gfx}"
