"""CANN's runtime, asked in a process of its own: it may be missing, broken or hanging, and is loaded by nobody else.

The child opens the libraries that torch_npu needs, and counts the devices. No context is created on any.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opdock.platforms import child

TIMEOUT = 10.0
"""Seconds that the runtime has to answer; a healthy one takes less than one."""

LIBRARIES = ("libascendcl.so", "libhccl.so")
"""Of CANN, those that torch_npu is linked to and that name themselves in its import error."""

SET_ENV = (
    "/usr/local/Ascend/ascend-toolkit/set_env.sh",
    "/usr/local/Ascend/cann/set_env.sh",
    "/usr/local/Ascend/nnae/set_env.sh",
)
"""Where CANN's installers put the script that puts its libraries on the path of a shell."""

_CHILD = """
import ctypes, json, os, sys
answer = {}
try:
    for name in sys.argv[2:]:
        library = ctypes.CDLL(name)
        if name.endswith("libascendcl.so"):
            acl = library
    count = ctypes.c_uint32(0)
    answer["code"] = acl.aclrtGetDeviceCount(ctypes.byref(count))
    answer["count"] = count.value
    acl.aclrtGetSocName.restype = ctypes.c_char_p
    answer["soc"] = (acl.aclrtGetSocName() or b"").decode(errors="replace")
except (OSError, AttributeError) as err:
    answer["missing"] = str(err)
os.write(int(sys.argv[1]), json.dumps(answer).encode() + b"\\n")
os._exit(0)  # a library may hang when it is left, too
"""


@dataclass(frozen=True)
class Answer:
    """What the runtime said; one of these.

    Args:
        missing: the loader's words, where a library is not there or lacks a function.
        broken: in words, where the process that asked it died or hung.
        code: its error, where it answered with one; 0.
        devices: the number of NPUs that it lets this process see.
        soc: the name of the chip, such as ``Ascend910B3``; "" where it is not known.
    """

    missing: str = ""
    broken: str = ""
    code: int = 0
    devices: int = 0
    soc: str = ""


def ask(*, timeout: float = TIMEOUT, libraries: Sequence[str] = LIBRARIES) -> Answer:
    """Ask the runtime how many NPUs there are; in bounded time, whatever its driver does.

    Args:
        timeout: seconds.
        libraries: what is opened, ``libascendcl.so`` among them; names or paths.
    """
    reply = child.ask(_CHILD, *libraries, timeout=timeout, options=("-I", "-S"))
    return Answer(broken=reply.how) if reply.told is None else read(reply.told)


def read(told: Mapping[str, Any]) -> Answer:
    """Return what the child told."""
    if "missing" in told:
        return Answer(missing=str(told["missing"]))
    if told["code"] != 0:
        return Answer(code=int(told["code"]))
    return Answer(devices=int(told["count"]), soc=str(told["soc"]))


def has_device_files() -> bool:
    """Return whether the driver's device files are there: an NPU is in the machine, and its driver is loaded."""
    return any(Path("/dev").glob("davinci[0-9]*"))


def where_set_env(environ: Mapping[str, str] = os.environ) -> str:
    """Return the script that puts an installed CANN on the path, "" if none is found."""
    home = environ.get("ASCEND_HOME_PATH") or environ.get("ASCEND_TOOLKIT_HOME")
    candidates = [f"{home}/set_env.sh", f"{home}/../set_env.sh"] if home else []
    return next((path for path in (*candidates, *SET_ENV) if os.path.exists(path)), "")  # noqa: PTH110 - as written
