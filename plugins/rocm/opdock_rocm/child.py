"""Asking a library in a process of its own: it may be missing, broken or hanging, and is loaded by nobody else."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from typing import Any

TIMEOUT = 10.0
"""Seconds that a driver has to answer; a healthy one takes less than one."""

MARK = "opdock-rocm:"
"""What the answer's line begins with: vendors' libraries print too."""


class Broken(Exception):
    """The process that asked died or hung; ``text`` says how."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def ask(program: str, *arguments: str, timeout: float = TIMEOUT) -> dict[str, Any]:
    """Run a Python program that prints its answer as JSON, in bounded time, whatever a driver does.

    Args:
        program: it finds ``answer``, an empty dict, which is printed at its end.
        arguments: its ``sys.argv[1:]``.
        timeout: seconds.

    Raises: Broken.
    """
    # The folder that the process runs in is no place for a vendor's module.
    before = "import json, sys\nsys.path[:] = [p for p in sys.path if p]\nanswer = {}\n"
    after = f"\nsys.stdout.write({'%r'} + json.dumps(answer) + {'%r'})\n" % ("\n" + MARK, "\n")
    command = [sys.executable, "-c", before + program + after, *arguments]
    # ``with`` would wait for a process that hangs in a driver, which does not die of being killed.
    asked = subprocess.Popen(  # noqa: S603 - our own program
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        output, _ = asked.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        asked.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            asked.wait(1.0)
        if asked.stdout is not None:
            asked.stdout.close()
        if asked.returncode is None:
            asked.returncode = -9  # else Python warns of a child that is left to the system
        raise Broken(f"no answer within {timeout:g} s") from None
    return read(output, asked.returncode)


def read(output: bytes, returncode: int) -> dict[str, Any]:
    """Return the answer among what a process printed.

    Raises: Broken where there is none.
    """
    lines = output.decode(errors="replace").splitlines()
    told = [line.removeprefix(MARK) for line in lines if line.startswith(MARK)]
    if told:
        with contextlib.suppress(ValueError):
            found: dict[str, Any] = json.loads(told[-1])
            return found
    how = f"signal {-returncode}" if returncode < 0 else f"exit code {returncode}"
    raise Broken(f"the process that asked it ended with {how}")
