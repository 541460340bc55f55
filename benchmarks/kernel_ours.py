"""Our providers of an op, as the tables time them."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from kernel_cases import Call, Case, Inputs

EXTENSION = Path(__file__).parents[1] / "plugins" / "cuda" / "opdock_cuda" / "_C.abi3.so"
TRITON = "opdock.nn.kernels.triton"


@dataclass(frozen=True)
class Ours:
    """One provider.

    Args:
        provider: its name in the IR, whose tolerances hold.
        call: takes the op's arguments.
    """

    provider: str
    call: Callable[..., Any]

    def prepare(self, args: Inputs) -> Call:
        """Return the call to be timed."""
        call = self.call
        return lambda: call(*args)


def activate(extension: Path | None) -> str:
    """Make this machine's platform the process's, load the extension if that did not, and say what there is."""
    from opdock import context, ir, set_current_config
    from opdock.errors import OpdockError

    try:
        with set_current_config():  # the defaults of the platform stay in force behind it
            pass
        name, priority = context.platform().device_name, ir.ops.rms_norm.get_priority()
        said = f"Platform {name}; providers of rms_norm: {', '.join(priority) or 'unset'}."
    except OpdockError as err:
        said = f"No platform: {str(err).splitlines()[0]}"
    if not hasattr(torch.ops.opdock_cuda, "rms_norm"):
        file = extension or EXTENSION
        torch.ops.load_library(str(file))
        said += f" {file.name} is loaded by this script."
    why = _triton()[1]
    return said + (f" The Triton providers are left out: {why}." if why else "")


@functools.cache
def _triton() -> tuple[Any, str]:
    """Return the module of the Triton kernels, and why it is not to be used, "" if it is."""
    try:
        found: Any = importlib.import_module(TRITON)
    except ImportError as err:
        return None, str(err)
    return found, found.why_not()


def ours_of(case: Case, args: Inputs) -> tuple[dict[str, Ours], str]:
    """Return our providers by column, and the column of the one that runs for these arguments.

    ``cuda`` is the raw torch op, ``triton`` the kernel in the core. Where the priority in force chooses neither
    (no platform is active, or the IR does not have the op), ``cuda`` counts as chosen.
    """
    raw = getattr(torch.ops.opdock_cuda, case.ours).default
    found = {"cuda": Ours("cuda", lambda *a: raw(*a, *case.extra))}
    if case.op is None:
        return found, "cuda"
    module, why = _triton()
    kernel = None if why else getattr(module, case.op.name, None)
    if kernel is not None:
        found["triton"] = Ours("triton", kernel)
    return found, "triton" if "triton" in case.op.dispatch(*args).provider else "cuda"
