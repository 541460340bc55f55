"""CANN's runtime, asked in a process of its own: it may be missing, broken or hanging, and is loaded by nobody else.

The child opens the libraries that torch_npu needs, and counts the devices. No context is created on any.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
import ctypes, json, sys
answer = {}
try:
    for name in sys.argv[1:]:
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
sys.stdout.write(json.dumps(answer))
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
    command = [sys.executable, "-I", "-S", "-c", _CHILD, *libraries]
    with subprocess.Popen(  # noqa: S603 - our own program
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as child:
        try:
            output, _ = child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            child.kill()
            # A process that waits inside a driver does not die of it, and is not waited for.
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(1.0)
            _let_go(child)
            return Answer(broken=f"no answer within {timeout:g} s")
    return read(output, child.returncode)


def _let_go(child: subprocess.Popen[bytes]) -> None:
    """Leave a child that does not die to the system: ``with`` would wait for it for ever."""
    if child.stdout is not None:
        child.stdout.close()
    if child.returncode is None:
        child.returncode = -9


def read(output: bytes, returncode: int) -> Answer:
    """Return what a child said, from its output and the code that it ended with."""
    try:
        told = json.loads(output)
    except ValueError:
        how = f"signal {-returncode}" if returncode < 0 else f"exit code {returncode}"
        return Answer(broken=f"the process that asked it ended with {how}")
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
