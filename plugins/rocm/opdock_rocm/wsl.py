"""Windows' Linux: it has neither the driver's files nor amdsmi, so HIP's runtime is asked, in a process of its own."""

from __future__ import annotations

import platform as host
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from opdock_rocm import child
from opdock_rocm.gpus import Facts

DEVICE = "/dev/dxg"
RUNTIME = "libamdhip64.so"
FOLDERS = ("/opt/rocm/lib",)

_PROGRAM = """
def main():
    import ctypes
    said = "no path"
    for path in sys.argv[1:]:
        try:
            hip = ctypes.CDLL(path)
            break
        except OSError as err:
            said = str(err)
    else:
        answer["error"] = said
        return
    count = ctypes.c_int(0)
    code = hip.hipGetDeviceCount(ctypes.byref(count))
    if code not in (0, 100):
        answer["error"] = f"hipGetDeviceCount answers with error {code}"
        return
    answer["gpus"] = []
    for i in range(count.value if code == 0 else 0):
        name, size = ctypes.create_string_buffer(256), ctypes.c_size_t(0)
        hip.hipDeviceGetName(name, 256, i)
        hip.hipDeviceTotalMem(ctypes.byref(size), i)
        answer["gpus"].append([name.value.decode(errors="replace"), size.value])
main()
"""


def is_wsl(release: str | None = None, exists: Callable[[str], bool] = lambda path: Path(path).exists()) -> bool:
    """Return whether this is Windows' Linux with a GPU driver.

    Args:
        release: of the kernel; None: the one that runs.
        exists: tells whether a path exists.
    """
    return "microsoft" in (release or host.uname().release).lower() and exists(DEVICE)


def paths(libraries: str) -> tuple[str, ...]:
    """Return where HIP's runtime may be; first in torch's folder of libraries, which has one of its own."""
    return (*(f"{folder}/{RUNTIME}" for folder in (libraries, *FOLDERS)), RUNTIME)


def ask(where: Sequence[str], *, timeout: float = child.TIMEOUT) -> dict[str, Any]:
    """Ask HIP's runtime for the GPUs that it lets this process see; ``read`` reads the answer.

    Args:
        where: paths of it; the first that can be loaded is asked.
        timeout: seconds.

    Raises: child.Broken.
    """
    return child.ask(_PROGRAM, *where, timeout=timeout)


def read(answer: dict[str, Any]) -> tuple[str, tuple[Facts, ...]]:
    """Return (why the runtime cannot tell, what it sees): one of them."""
    if "error" in answer:
        return str(answer["error"]), ()
    return "", tuple(Facts(name=name, total_memory=size) for name, size in answer["gpus"])
