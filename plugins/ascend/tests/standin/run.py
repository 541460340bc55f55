"""Run a command, pytest over this package by default, with the real torch_npu over the stand-in runtime.

``python plugins/ascend/tests/standin/run.py [pytest's arguments]``, in an environment that has torch_npu, opdock[test]
and this package. It compiles the stand-in libraries, a second's work, and sets the variables that a process reads at
its start. Without torch_npu or a C compiler it ends with the reason.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
CANN, DEVICES = "OPDOCK_ASCEND_STANDIN", "2"
"""The variable that tells tests where the stand-in libraries are, and the number of devices."""


def environment(libraries: Path) -> dict[str, str]:
    """Return the variables of a process that takes the libraries in this folder for CANN."""

    def joined(first: str, variable: str) -> str:
        return os.pathsep.join(filter(None, (first, os.environ.get(variable))))

    return {
        **os.environ,
        CANN: str(libraries),
        "LD_LIBRARY_PATH": joined(str(libraries), "LD_LIBRARY_PATH"),
        "PYTHONPATH": joined(str(HERE), "PYTHONPATH"),
        "STANDIN_NPU_COUNT": DEVICES,
        # torch_npu's own: launch at once and in order, or a kernel that fails leaves its queue hanging
        "ASCEND_LAUNCH_BLOCKING": "1",
        "TASK_QUEUE_ENABLE": "0",
    }


def main(arguments: list[str]) -> int:
    """Build, run, and return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, str(HERE / "build.py"), folder], check=True)
        named = any(Path(argument.partition("::")[0]).exists() for argument in arguments)
        command = ["-m", "pytest", *arguments, *([] if named else [str(HERE.parent)])]
        return subprocess.run([sys.executable, *command], env=environment(Path(folder))).returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
