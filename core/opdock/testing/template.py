"""A process that has imported torch and forks the children in which a package is checked.

Importing torch takes seconds, a fork milliseconds: a child that hangs or dies is replaced at once. The template runs no
code of any package and touches no device, so a child of it is as good as a fresh process.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from opdock.errors import OpdockError
from opdock.testing.process import how_it_ended

_START = "import sys; sys.path[:] = sys.argv[2:]; from opdock.testing import template; template.main(int(sys.argv[1]))"
_PRELOADED = (
    "torch",
    "torch._dynamo",
    "torch.testing._internal.optests",
    "hypothesis",
    "opdock.nn.layers",
    "opdock.nn.attention",
    "opdock.nn.models.decoder",
    "opdock.compile.backend",
    "opdock.testing.worker",
    "torch._dynamo.backends.inductor",
)
_templates: dict[tuple[tuple[str, str], ...], Template] = {}


class Template:
    """The parent's handle; one for each set of environment variables."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Start the process; it is ready when the first child is asked for."""
        self._socket, theirs = socket.socketpair()
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-c", _START, str(theirs.fileno()), *map(str, sys.path)],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
            env={**os.environ, **environ},
        )
        theirs.close()

    def fork(self, order: Mapping[str, Any], descriptors: list[int]) -> int:
        """Start a child with an order and descriptors of its own; return its process id."""
        socket.send_fds(self._socket, [json.dumps({"fork": order}).encode() + b"\n"], descriptors)
        return int(self._told()["pid"])

    def ended(self, pid: int) -> str:
        """Return in words how a child ended; one that still runs after a second is killed."""
        self._socket.sendall(json.dumps({"wait": pid}).encode() + b"\n")
        return str(self._told()["ended"])

    def close(self) -> None:
        """End the process."""
        self._socket.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        self._process.kill()
        self._process.wait()

    def _told(self) -> dict[str, Any]:
        line = bytearray()
        while not line.endswith(b"\n"):
            chunk = self._socket.recv(1 << 16)
            if not chunk:
                raise OpdockError(
                    "The kit's own process ended before it was ready.",
                    why=how_it_ended(self._process.wait()),
                    remedy="its last words are above; is opdock[test] installed?",
                )
            line += chunk
        told: dict[str, Any] = json.loads(line)
        return told


def template(environ: Mapping[str, str]) -> Template:
    """Return the template for these variables; it ends with this process."""
    key = (*sorted(environ.items()), ("", str(os.getpid())))  # a forked process has none
    if key not in _templates:
        _templates[key] = Template(environ)
        atexit.register(_templates[key].close)
    return _templates[key]


def main(descriptor: int) -> None:
    """Import what is slow, then fork a child for each order that comes."""
    from importlib import import_module

    for name in _PRELOADED:
        import_module(name)
    from opdock.testing import check, worker

    check.all_checks()

    channel = socket.socket(fileno=descriptor)
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, 1 << 20, 4)
        if not message:
            return
        order = json.loads(message)
        if "wait" in order:
            told: dict[str, object] = {"ended": _wait(int(order["wait"]))}
        else:
            pid = os.fork()
            if pid == 0:
                channel.close()
                os.setsid()
                worker.main(order["fork"], *descriptors)  # does not return
            told = {"pid": pid}
        for number in descriptors:
            os.close(number)
        channel.sendall(json.dumps(told).encode() + b"\n")


def _wait(pid: int) -> str:
    end = time.monotonic() + 1.0
    try:
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return how_it_ended(os.waitstatus_to_exitcode(status))
            if time.monotonic() > end:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return "being stopped: it still ran"
            time.sleep(0.01)
    except ChildProcessError:
        return "no trace"
