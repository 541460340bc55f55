"""Is there an NVIDIA GPU that this process can use? Asked without torch and without initialising CUDA.

Three outcomes: None, a GPU is there; a reason in words, there is none to use; an error, a GPU or its driver
is there and broken, which must not end as a silent run on the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from opdock.errors import PlatformError
from opdock_cuda import nvml, torch_build, visible

_JETSON = ("/etc/nv_tegra_release", "/sys/class/tegra-firmware")


def probe() -> str | None:
    """Return None where a GPU can be used, else why not.

    Raises: PlatformError where the driver is there and answers with an error.
    """
    return judge(nvml.all_facts, torch_build.read(), os.environ, jetson=is_jetson())


def judge(
    read: Callable[[], Sequence[nvml.Facts]],
    build: torch_build.Build | None,
    environ: Mapping[str, str],
    *,
    jetson: bool = False,
) -> str | None:
    """Return None where a GPU can be used, else why not; a pure function of what was read.

    Args:
        read: returns the GPUs that NVML sees, or raises ``nvml.Failure``.
        build: what the installed PyTorch was built for; None where none is installed.
        environ: the environment variables.
        jetson: whether the machine is a Jetson, whose NVML is partial or missing.

    Raises: PlatformError where the driver is there and answers with an error.
    """
    try:
        gpus = read()
    except nvml.Failure as failure:
        if not jetson:
            if failure.absent:
                return f"no NVIDIA driver: NVML says {failure.text!r}"
            raise PlatformError(
                f"The NVIDIA driver does not work: NVML says {failure.text!r}.",
                why="NVML's library is installed, so a GPU was meant to be used.",
                remedy="see what nvidia-smi says; OPDOCK_PLATFORM=cpu runs on the CPU meanwhile.",
            ) from failure
        gpus = [nvml.unknown()]
    if not gpus:
        return "the NVIDIA driver is loaded and sees no GPU"
    here = "a Jetson GPU is here" if jetson else f"NVML sees {len(gpus)} GPU{'s' * (len(gpus) != 1)}"
    hidden = visible.hides_all(environ.get(visible.VARIABLE), gpus)
    if hidden:
        return f"{here}, and {hidden}"
    if build is None:
        return f"{here}, and PyTorch is not installed"
    if build.cuda is None:
        kind = f"for ROCm {build.hip}" if build.hip else "without CUDA"
        return f"{here}, and PyTorch {build.version} is built {kind}: install a CUDA build of it"
    return None


def is_jetson(exists: Callable[[str], bool] = lambda path: Path(path).exists()) -> bool:
    """Return whether the machine is a Jetson board."""
    return any(exists(path) for path in _JETSON)
