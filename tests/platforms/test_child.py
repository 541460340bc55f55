"""Asking a plugin in a child process: bounded time and one clear status, whatever its code does."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from opdock.platforms.child import ask, probe_in_child

Install = Callable[..., str]


@pytest.mark.parametrize(
    ("source", "status", "words"),
    [
        ("raise SystemExit(3)", "failed", "SystemExit: 3"),
        ("raise KeyboardInterrupt", "failed", "KeyboardInterrupt"),
        ("import os; os._exit(5)", "exited", "exit code 5"),
        ("import ctypes; ctypes.string_at(0)", "exited", "signal 11"),
        ("import os; os.closerange(3, 1000)", "exited", "Bad file descriptor"),
        ("import os; os.write(1, b'\\xff' * 99999); os.write(2, bytes(range(256))); os._exit(1)", "exited", "code 1"),
        ("input()", "failed", "EOFError"),
        ("import vllm_nowhere", "failed", "needs module vllm_nowhere, which is not installed"),
        ("def register(): return 7", "failed", "returned 7, expected a class path"),
        ("def register(): return __name__ + ':f'\ndef f(): ...", "failed", "class"),
        ("import opdock\ndef register(): return opdock.decline('no chip')", "declined", "no chip"),
    ],
)
def test_b15_every_way_to_end_has_a_status_and_a_reason(source: str, status: str, words: str, install: Install) -> None:
    """An answer comes at once, not when the time is up."""
    install("chip", source=source)
    report = probe_in_child("chip", timeout=60)
    assert (report.status, words in report.reason) == (status, True), report


IGNORES_SIGNALS = """
import signal, time
for number in range(1, 32):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
time.sleep(600)
"""


@pytest.mark.parametrize(
    "source",
    [
        "import time; time.sleep(600)",
        IGNORES_SIGNALS,
        "import sys\nwhile True: sys.stderr.write('x' * 65536); sys.stdout.write('y' * 65536)",
    ],
)
def test_b12_a_plugin_that_never_answers_is_stopped(source: str, install: Install) -> None:
    """With its whole process group, by a signal that cannot be ignored."""
    install("chip", source=source)
    report = probe_in_child("chip", timeout=1.5)
    assert report.status == "timeout" and "1.5 s" in report.reason


@pytest.mark.parametrize("leave", ["", "os.setsid(); "])
def test_a_process_that_it_leaves_behind_is_not_waited_for(leave: str, install: Install, tmp_path: Path) -> None:
    """It holds the pipe; the plugin itself has ended. One in the plugin's own group is ended too."""
    pid = tmp_path / "pid"
    source = (
        "import os, time, pathlib\nif os.fork() == 0:\n"
        f"    {leave}pathlib.Path({str(pid)!r}).write_text(str(os.getpid())); time.sleep(20); os._exit(0)\n"
        f"while not os.path.exists({str(pid)!r}): time.sleep(0.01)\nos._exit(7)\n"
    )
    install("chip", source=source)
    report = probe_in_child("chip", timeout=60)
    assert report.status == "exited" and "exit code 7" in report.reason
    if not leave:
        _wait_until_gone(int(pid.read_text()))


def _wait_until_gone(pid: int) -> None:
    for _ in range(500):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state == "Z":
            return
        time.sleep(0.01)
    pytest.fail(f"process {pid} is still there")


def test_b09_asking_for_the_platform_is_an_error_and_runs_no_other_plugin(install: Install, tmp_path: Path) -> None:
    """The child decides nothing for itself: that would import every candidate."""
    ran = tmp_path / "ran"
    install("other", source=f"open({str(ran)!r}, 'w').close()\ndef register(): return None")
    install("chip", source="from opdock.platforms import current_platform\ncurrent_platform.is_cpu()")
    report = probe_in_child("chip", timeout=60)
    assert report.status == "failed" and "needed while it is being decided" in report.reason
    assert "current_platform" in report.trace
    assert not ran.exists()


def test_modules_in_the_current_folder_are_not_imported(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever puts a json.py in front of the user would run code through ``opdock doctor``."""
    install("chip", source="import opdock\ndef register(): return opdock.decline('no chip')")
    here = tmp_path / "here"
    here.mkdir()
    for name in ("json", "opdock", "traceback", "signal"):
        (here / f"{name}.py").write_text("import os; os._exit(66)")
    monkeypatch.chdir(here)
    assert probe_in_child("chip", timeout=60).reason == "no chip"


def test_an_active_platform_gives_its_class_path(active: Install) -> None:
    """The class is imported and checked too."""
    module = active("chip")
    report = probe_in_child("chip", timeout=60)
    assert (report.status, report.class_path) == ("activated", f"{module}:P")


def test_of_one_name_in_two_distributions_the_one_meant_is_asked(install: Install) -> None:
    """By the name of its distribution."""
    for name in ("one", "two"):
        install(name, source=f"import opdock\ndef register(): return opdock.decline({name!r})", entry_point="chip")
    assert probe_in_child("chip", timeout=60, distribution="dist-two").reason == "two"


def test_pipes_are_closed(install: Install) -> None:
    """A doctor that asks many plugins keeps none of their pipes."""
    install("chip", source="def register(): return None")
    probe_in_child("chip", timeout=60)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        probe_in_child("chip", timeout=60)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_any_program_may_be_asked_and_what_it_prints_is_not_taken_for_its_answer() -> None:
    """As a vendor's package asks a driver."""
    program = (
        "import os, sys; print('{}'); os.write(int(sys.argv[1]), b'{\"words\": \"' + sys.argv[2].encode() + b'\"}\\n')"
    )
    reply = ask(program, "two words", timeout=60, options=("-I", "-S"))
    assert (reply.told, reply.how, reply.timed_out) == ({"words": "two words"}, "", False)
    reply = ask("raise OSError('driver 25 is too old')", timeout=60)
    assert (reply.told, reply.how) == (None, "the process ended with exit code 1: OSError: driver 25 is too old")


def test_an_answer_counts_though_the_process_hangs_when_it_ends() -> None:
    """Some drivers wait for ever when their library is left."""
    program = "import os, sys, time; os.write(int(sys.argv[1]), b'{\"count\": 8}\\n'); time.sleep(600)"
    assert ask(program, timeout=60).told == {"count": 8}


def test_a_process_that_does_not_die_of_being_killed_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that waits inside a driver does not; here the signal is kept from it."""
    pid = tmp_path / "pid"
    program = "import os, pathlib, sys, time; pathlib.Path(sys.argv[2]).write_text(str(os.getpid())); time.sleep(600)"
    with monkeypatch.context() as patched:
        patched.setattr(os, "killpg", lambda *_: None)
        reply = ask(program, str(pid), timeout=3)
    assert (reply.told, reply.how, reply.timed_out) == (None, "no answer within 3 s", True)
    os.kill(int(pid.read_text()), signal.SIGKILL)
    os.waitpid(int(pid.read_text()), 0)
