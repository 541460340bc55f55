"""Is there an Ascend NPU that this process can use? Asked without torch, torch_npu, or a context on a device.

Three outcomes: None, an NPU is there; a reason in words, there is none to use; an error, an NPU or its driver is there
and broken, which must not end as a silent run on the CPU.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping

from opdock.errors import PlatformError
from opdock_ascend import runtime, torch_build, visible

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""``0``: ``import torch`` leaves torch_npu alone. Else it imports it, and fails where CANN is missing."""


@functools.cache
def probe() -> str | None:
    """Return None where an NPU can be used, else why not; looked for once in a process.

    Raises: PlatformError where the driver is there and does not answer, or answers with an error.
    """
    return judge(
        torch_build.read(),
        _answer,
        os.environ,
        device_files=runtime.has_device_files(),
        set_env=runtime.where_set_env(),
    )


def judge(
    build: torch_build.Build,
    ask: Callable[[], runtime.Answer],
    environ: Mapping[str, str],
    *,
    device_files: bool = False,
    set_env: str = "",
) -> str | None:
    """Return None where an NPU can be used, else why not; a pure function of what was read.

    Args:
        build: which torch and torch_npu are installed.
        ask: asks CANN's runtime; called only where torch_npu fits.
        environ: the environment variables.
        device_files: whether the driver's device files are there.
        set_env: CANN's script for shells, where it is installed; "".

    Raises: PlatformError where the driver is there and does not answer, or answers with an error.
    """
    seen = "an NPU is here, and " if device_files else ""
    if build.torch_npu is None:
        if not device_files:
            return "no Ascend NPU: torch_npu is not installed and the driver has no device files"
        version = (build.torch or "").partition("+")[0]
        return f"{seen}torch_npu is not installed: pip install torch_npu=={version or 'the version of torch'}"
    if build.torch is None:
        return f"{seen}torch_npu {build.torch_npu} is installed, and PyTorch is not"
    if not torch_build.fits(build.torch, build.wanted):
        return (
            f"{seen}torch_npu {build.torch_npu} is built for torch{build.wanted}, and torch is {build.torch}"
            f"{_warning(environ)}"
        )
    answer = ask()
    if answer.missing:
        where = f": source {set_env} first" if set_env else ""
        return (
            f"{seen}torch_npu {build.torch_npu} is installed, and CANN is not on the library path "
            f"({answer.missing}){where}{_warning(environ)}"
        )
    hidden = visible.hides_all(environ.get(visible.VARIABLE))
    failure = answer.broken or (f"aclrtGetDeviceCount answers with error {answer.code}" if answer.code else "")
    if answer.code and (hidden or not device_files):  # CANN is installed on build machines too
        return f"no Ascend NPU: {hidden or f'CANN is installed, and {failure}'}"
    if failure:
        raise PlatformError(
            f"The Ascend driver does not work: {failure}.",
            why=f"torch_npu {build.torch_npu} and CANN are installed, so an NPU was meant to be used.",
            remedy="see what npu-smi info says; OPDOCK_PLATFORM=cpu runs on the CPU meanwhile.",
        )
    if answer.devices == 0:
        return f"CANN's runtime sees no NPU{', and ' + hidden if hidden else ''}"
    return None


def _warning(environ: Mapping[str, str]) -> str:
    """Return what is to be set where ``import torch`` itself fails, "" where it is set."""
    if environ.get(AUTOLOAD) == "0":
        return ""
    return f"; `import torch` loads torch_npu and fails with it, CPU or not: set {AUTOLOAD}=0, or uninstall torch_npu"


def why_not() -> str:
    """Return why no NPU can be used, "" where one can; errors as reasons."""
    try:
        return probe() or ""
    except PlatformError as err:
        return err.what


def chip() -> str:
    """Return the name of the chip, such as ``Ascend910B3``, "" where no NPU can be used."""
    return "" if why_not() else _answer().soc


@functools.cache
def _answer() -> runtime.Answer:
    return runtime.ask()
