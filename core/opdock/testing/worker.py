"""The child that holds the platform: it activates the package once, then runs one check after the other."""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import sys
import time
import traceback
from typing import Any

from opdock.errors import OpdockError
from opdock.testing import check as checks
from opdock.testing.activating import activate
from opdock.testing.kit import Kit
from opdock.testing.results import FAILED, NOT_RUN, PASSED
from opdock.testing.settings import Settings

_TRACE = 3000  # characters kept of a traceback
_dumps = json.dumps  # a package may put another in its place


class Channel:
    """Writes answers, one JSON object a line; only the process that was forked for it may."""

    def __init__(self, descriptor: int) -> None:
        """Keep the descriptor and the process."""
        self._descriptor, self._pid = descriptor, os.getpid()

    def send(self, **told: object) -> None:
        """Write one answer; a process that code under check forked ends here instead."""
        if os.getpid() != self._pid:
            os._exit(0)
        text = (_dumps(told, default=repr) + "\n").encode()
        while text:
            text = text[os.write(self._descriptor, text) :]


class Steps(logging.Handler):
    """Passes on which step of the activation begins, and keeps what an optional package failed with."""

    def __init__(self, channel: Channel) -> None:
        """Listen to the host's logger."""
        super().__init__(logging.DEBUG)
        self._channel = channel
        self.step = ""
        self.failure: tuple[str, BaseException] | None = None
        logger = logging.getLogger("opdock")
        logger.addHandler(self)
        logger.setLevel(logging.DEBUG)

    def emit(self, record: logging.LogRecord) -> None:
        """Take one record."""
        if record.msg.startswith("Step begins") and isinstance(record.args, tuple):
            self.step = str(record.args[0])
            self._channel.send(step=self.step)
        elif "is left out" in record.msg and record.exc_info and record.exc_info[1] is not None:
            self.failure = self.step, record.exc_info[1]


def main(order: dict[str, Any], orders: int, answers: int, output: int, trail: int) -> None:
    """Serve until the parent closes the pipe.

    Args:
        order: the settings, the package and where to find it.
        orders: descriptor from which requests are read, one JSON object a line.
        answers: descriptor to which answers are written.
        output: descriptor of the file that takes what code under check prints.
        trail: descriptor of the file that takes the input that is being tried.
    """
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.enable()
    os.environ.update(order["environ"])
    os.chdir(order["folder"])
    sys.path[:] = order["path"]
    channel = Channel(answers)
    try:
        _serve(order, Kit(Settings(**order["settings"]), trail), os.fdopen(orders), channel)
    except BaseException:  # noqa: BLE001 - nothing may get out of the child
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(70)
    os._exit(0)


def _serve(order: dict[str, Any], kit: Kit, requests: Any, channel: Channel) -> None:
    settings, steps = kit.settings, Steps(channel)
    _hang_up_after(settings.timeout)
    kit.activation = activate(kit, order["kind"], order["class_path"], steps)
    faulthandler.cancel_dump_traceback_later()
    channel.send(done=kit.activation)
    known = checks.all_checks()
    for line in requests:
        asked = json.loads(line)
        _hang_up_after(settings.timeout)
        start = time.perf_counter()
        status, message = _run(known[asked["check"]], kit, asked["subject"])
        faulthandler.cancel_dump_traceback_later()
        channel.send(done={"status": status, "message": message, "seconds": time.perf_counter() - start})


def _hang_up_after(timeout: float) -> None:
    """Print where the child is shortly before the parent gives it up."""
    faulthandler.dump_traceback_later(max(0.1, timeout * 0.9), exit=False)


def _run(check: checks.Check, kit: Kit, subject: str) -> tuple[str, str]:
    kit.trying("")
    try:
        return PASSED, check.run(kit, subject) or ""
    except checks.CannotRun as err:
        return NOT_RUN, str(err)
    except checks.Fault as err:
        return FAILED, str(err)
    except BaseException as err:  # noqa: BLE001 - code of the package ran: whatever it raises is a finding
        what = str(err) if isinstance(err, OpdockError) else f"{type(err).__name__}: {err}"
        trace = "".join(traceback.format_exception(err))[-_TRACE:]
        where = f"input: {kit.last_input}\n" if kit.last_input else ""
        return FAILED, f"It raised {what}\n{where}{trace}"
