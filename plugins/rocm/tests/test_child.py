"""opdock_rocm.child: whatever a driver does, there is an answer, in bounded time."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from opdock_rocm.child import Broken, ask


def test_an_answer_comes_back_whatever_libraries_print() -> None:
    assert ask("print('noise', end='')\nanswer['n'] = int(sys.argv[1])", "7") == {"n": 7}


def test_a_driver_that_hangs_is_ended_in_bounded_time(tmp_path: Path) -> None:
    """Opening a pipe that nobody writes to waits for ever, as some drivers do."""
    pipe = tmp_path / "driver"
    os.mkfifo(pipe)
    start = time.monotonic()
    with pytest.raises(Broken, match=r"no answer within 0\.5 s"):
        ask("open(sys.argv[1]).read()", str(pipe), timeout=0.5)
    assert time.monotonic() - start < 10


def test_a_driver_that_crashes_is_told_with_its_signal() -> None:
    with pytest.raises(Broken, match="ended with signal 11"):
        ask("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")


def test_a_program_that_fails_is_told_with_its_code() -> None:
    with pytest.raises(Broken, match="ended with exit code 3"):
        ask("sys.exit(3)")
    with pytest.raises(Broken, match="ended with exit code 0"):
        ask("os.write(descriptor, b'{not json'); os._exit(0)")
    with pytest.raises(Broken, match="exit code 1: ImportError: no such driver"):
        ask("raise ImportError('no such driver')")


def test_a_long_answer_comes_back_whole() -> None:
    assert ask("answer['text'] = 'x' * 300_000") == {"text": "x" * 300_000}


def test_a_module_in_the_folder_of_the_process_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "amdsmi.py").write_text("", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    program = "import importlib.util\nanswer['found'] = importlib.util.find_spec('amdsmi') is not None"
    assert ask(program) == {"found": False}
