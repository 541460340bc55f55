"""Asking a library in a process of its own: it may be missing, broken or hanging, and is loaded by nobody else."""

from __future__ import annotations

from typing import Any

from opdock.platforms import child

TIMEOUT = 10.0
"""Seconds that a driver has to answer; a healthy one takes less than one."""

# The folder that the process runs in is no place for a vendor's module.
_BEFORE = """\
import json, os, sys
sys.path[:] = [p for p in sys.path if p]
descriptor, answer = int(sys.argv.pop(1)), {}
"""
_AFTER = """
os.write(descriptor, json.dumps(answer).encode() + b"\\n")
"""


class Broken(Exception):
    """The process that asked died or hung; ``text`` says how."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def ask(program: str, *arguments: str, timeout: float = TIMEOUT) -> dict[str, Any]:
    """Run a Python program and return its answer, in bounded time, whatever a driver does.

    Args:
        program: it fills ``answer``, an empty dict, with what JSON has; what it prints is not read.
        arguments: its ``sys.argv[1:]``.
        timeout: seconds.

    Raises: Broken.
    """
    reply = child.ask(_BEFORE + program + _AFTER, *arguments, timeout=timeout)
    if reply.told is None:
        raise Broken(reply.how)
    return reply.told
