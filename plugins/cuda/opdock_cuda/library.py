"""The compiled kernels, ``_C.abi3.so``: loading them, or knowing why not.

Importing the file registers the ops ``torch.ops.opdock_cuda.*``; it starts no driver.
"""

from __future__ import annotations

import functools
import importlib
import json
import re
import sys
from pathlib import Path

from opdock_cuda import elf

FILE, FACTS = "_C.abi3.so", "_C.json"
OLDEST_TORCH = (2, 11)
OLDEST_CAPABILITY = (8, 0)
"""What the kernels need, where the build left no list of its architectures."""

NOT_BUILT = (
    "built without CUDA kernels: this package was installed as pure Python; OPDOCK_CUDA_BUILD=1 pip install "
    "--no-build-isolation builds them, with nvcc"
)


def load() -> bool:
    """Load the kernels, once in a process, with their fake implementations; return whether they are there."""
    return not why_not()


@functools.cache
def why_not() -> str:
    """Return why the kernels cannot be loaded, "" where they are; the linker's words where it has any.

    It is tried once: what half a try has registered stays, and a second one would fail of that. So the first reason is
    kept, whatever it was, and told each time.
    """
    import torch

    folder = Path(__file__).parent
    reason = unfit(torch.__version__, built=(folder / FILE).is_file())
    if reason:
        return reason
    reason = _defined_already(folder / FILE)
    if reason:
        return reason
    try:
        fault = elf.fault(folder / FILE)
        if fault:
            return f"{FILE} cannot be loaded: {folder / FILE}: {fault}"
        compiled = importlib.import_module("opdock_cuda._C")
    except Exception as err:  # noqa: BLE001 - of the linker, of the module, of torch about its ops: a reason, no error
        return f"{FILE} cannot be loaded: {err}"
    from opdock_cuda import direct, fakes  # import torch

    missing = fakes.missing()
    if missing:
        return f"{FILE} is of an older build, without {', '.join(missing)}: build the package again"
    try:
        fakes.register()
        direct.connect(compiled)
    except Exception as err:  # noqa: BLE001 - likewise
        return f"{FILE} does not work with torch {torch.__version__}: {err}"
    return ""


def _defined_already(file: Path) -> str:
    """Return why a second library of the same ops is not loaded, "" where there is no first one.

    torch answers a second definition with an exception in the middle of the loading, which ends the process.
    """
    import torch

    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("opdock_cuda::")]
    if not names or "opdock_cuda._C" in sys.modules:
        return ""
    by = re.search(r"registered at (.+)", torch._C._dispatch_dump(names[0]))
    return (
        f"{file} is not loaded: ops of the namespace opdock_cuda are in this process already, such as {names[0]}, "
        f"registered at {by[1] if by else 'an unknown place'}; a second definition would end the process"
    )


def unfit(torch_version: str, *, built: bool) -> str:
    """Return why the kernels cannot be loaded whatever the linker says, "" if they may.

    Args:
        torch_version: as ``torch.__version__``.
        built: whether the file is there.
    """
    if not built:
        return NOT_BUILT
    found = re.match(r"(\d+)\.(\d+)", torch_version)
    if found is None or (int(found[1]), int(found[2])) < OLDEST_TORCH:
        return f"needs torch>={'.'.join(map(str, OLDEST_TORCH))}, and torch is {torch_version}"
    return ""


def why_not_on(capability: tuple[int, int] | None) -> str:
    """Return why the kernels do not run on a GPU of this compute capability, "" where they do or it is not known."""
    reason = why_not()
    if reason or capability is None:
        return reason
    file = Path(__file__).with_name(FACTS)
    architectures = json.loads(file.read_text(encoding="utf-8"))["architectures"] if file.is_file() else None
    return "" if runs_on(architectures, capability) else _no_image(architectures, capability)


def runs_on(architectures: list[str] | None, capability: tuple[int, int]) -> bool:
    """Return whether kernels that were built for ``architectures`` run on a GPU of this compute capability.

    Args:
        architectures: such as ``["8.0", "10.0+PTX"]``; machine code runs on later GPUs of the same first number,
            PTX on all later ones. None where it is not known.
        capability: of the GPU, such as (9, 0).
    """
    if architectures is None:
        return capability >= OLDEST_CAPABILITY
    for name in architectures:
        major, minor = (int(part) for part in name.removesuffix("+PTX").split("."))
        if capability >= (major, minor) and (name.endswith("+PTX") or capability[0] == major):
            return True
    return False


def _no_image(architectures: list[str] | None, capability: tuple[int, int]) -> str:
    known = ", ".join(architectures) if architectures else f"{OLDEST_CAPABILITY[0]}.{OLDEST_CAPABILITY[1]} and later"
    return f"the kernels are built for compute capability {known}, and the GPU has {capability[0]}.{capability[1]}"
