"""The parent's side of the child: start it, ask it within a time limit, say in words how it died."""

from __future__ import annotations

import contextlib
import json
import os
import select
import tempfile
import time
from typing import Any

from opdock.testing.process import kill_group, printable_tail
from opdock.testing.settings import INPUTS, Settings, Target
from opdock.testing.template import template

_READ = 1 << 16
_LOOK = 1.0
"""Seconds between two looks at what is being tried."""


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Return an answer of the child, or None if it is none: code of the package may have written it."""
    try:
        answer = json.loads(line)
    except ValueError:
        return None
    known = isinstance(answer, dict) and (isinstance(answer.get("done"), dict) or "step" in answer)
    return answer if known else None


class Died(Exception):
    """The child ended or was stopped; ``timed_out`` says which, the text how."""

    def __init__(self, text: str, *, timed_out: bool, step: str) -> None:
        """Keep what is known."""
        super().__init__(text)
        self.timed_out, self.step = timed_out, step


class Child:
    """One child with the package active in it.

    ``activation`` is what activating it told.

    Raises: Died if it did not get that far.
    """

    def __init__(self, settings: Settings, target: Target, class_path: str | None, path: list[str]) -> None:
        """Fork it and wait until the package is active."""
        self._settings, self._template = settings, template(settings.environ)
        self._output, self._trail = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115 - close closes them
        self._folder = tempfile.TemporaryDirectory(prefix="opdock-kit-")
        self._step = ""
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        name = target.candidate.name
        selected = {"OPDOCK_PLATFORM": name} if target.is_platform else {"VLLM_PLUGINS": name}
        order = {
            "settings": settings.to_dict(),
            "kind": "platform" if target.is_platform else "hooks",
            "class_path": class_path,
            "environ": {**settings.environ, **selected},
            "folder": self._folder.name,
            "path": path,
        }
        descriptors = [orders, answers, self._output.fileno(), self._trail.fileno()]
        self._pid = self._template.fork(order, descriptors)
        os.close(orders)
        os.close(answers)
        try:
            self.activation: dict[str, Any] = self._answer()
        except BaseException:
            self.close()
            raise

    def ask(self, check: str, subject: str) -> dict[str, Any]:
        """Return what a check of a subject gave: ``status``, ``message``, ``seconds``.

        Raises: Died.
        """
        with contextlib.suppress(BrokenPipeError):
            os.write(self._orders, (json.dumps({"check": check, "subject": subject}) + "\n").encode())
        return self._answer()

    def close(self) -> None:
        """Stop it, and all that it started."""
        for descriptor in (self._orders, self._answers):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        kill_group(self._pid)
        self._template.ended(self._pid)
        self._output.close()
        self._trail.close()
        self._folder.cleanup()

    def _answer(self) -> dict[str, Any]:
        limit = self._settings.timeout
        start = moved = time.monotonic()  # moved: when the last input was begun
        told, trail = bytearray(), self._tried()
        while True:
            ready, _, _ = select.select([self._answers], [], [], min(_LOOK, limit))
            if not ready:
                now, tried = time.monotonic(), self._tried()
                if tried != trail:
                    trail, moved = tried, now
                for since, most in ((moved, limit), (start, limit * INPUTS)):
                    if now - since >= most:
                        kill_group(self._pid)
                        self._template.ended(self._pid)
                        raise self._died(f"It did not end within {most:g} s.", timed_out=True)
                continue
            chunk = os.read(self._answers, _READ)
            if not chunk:
                how = self._template.ended(self._pid)
                raise self._died(f"The process ended with {how}.", timed_out=False)
            told += chunk
            while b"\n" in told:
                line, _, rest = bytes(told).partition(b"\n")
                told = bytearray(rest)
                answer = _parsed(line)
                if answer is None:
                    kill_group(self._pid)
                    self._template.ended(self._pid)
                    raise self._died("The package writes to a pipe that is not its own.", timed_out=False)
                if "done" in answer:
                    return dict(answer["done"])
                self._step = str(answer["step"])

    def _tried(self) -> bytes:
        self._trail.seek(0)
        return self._trail.read()

    def _died(self, text: str, *, timed_out: bool) -> Died:
        lines = [text]
        tried = printable_tail(self._tried())
        if tried:
            lines.append(f"input: {tried}")
        self._output.seek(0)
        tail = printable_tail(self._output.read()[-2000:])
        if "SIGABRT" in text or "SIGSEGV" in text:
            lines.append("Memory may have been written out of bounds, by this call or by an earlier one.")
        if tail:
            lines += ["what it printed last:", tail]
        return Died("\n".join(lines), timed_out=timed_out, step=self._step)
