"""Hardware that is seen, and the package that serves it. The one table in which the core names vendors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

_TABLE = (
    ("an NVIDIA GPU", "opdock-cuda", ("/dev/nvidiactl", "/dev/nvidia0", "/etc/nv_tegra_release")),
    ("an AMD GPU", "opdock-rocm", ("/dev/kfd",)),
    ("an Ascend NPU", "opdock-ascend", ("/dev/davinci_manager", "/dev/davinci0")),
    ("a TPU", "opdock-tpu", ("/dev/accel0",)),
)


def hints(
    installed: Iterable[str], exists: Callable[[str], bool] = os.path.exists, *, torch: str | None = None
) -> tuple[str, ...]:
    """Return a line for each piece of hardware that is seen while its package is not installed.

    Args:
        installed: names of installed distributions with a platform plugin.
        exists: tells whether a path exists.
        torch: the version of PyTorch, None if it is not installed; a build for Intel GPUs gives a line too.
    """
    have = {name.lower().replace("_", "-") for name in installed}
    seen = [
        f"{hardware} is here and {package} is not installed: pip install {package}"
        for hardware, package, paths in _TABLE
        if package not in have and any(exists(path) for path in paths)
    ]
    # Asked of the metadata: device files do not tell an Intel GPU that computes from the graphics of most laptops.
    if (torch or "").endswith("+xpu"):
        seen.append(
            f"torch {torch} is built for Intel GPUs (torch.xpu), and no installed platform plugin runs on one here; "
            "opdock has no package for them, and writes the start of one: opdock new NAME"
        )
    return tuple(seen)
