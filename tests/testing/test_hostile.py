"""Packages that harm their process: the kit ends, says what happened, goes on, and leaves no process behind."""

from __future__ import annotations

import json
from pathlib import Path

import package
import pytest
from negative.activation import KERNELS as KERNELS_HOOK
from negative.activation import hook
from negative.base import ACTIVE, SILU, edited

from opdock import testing
from opdock.testing import template

SLEEP = "86413"  # seconds, and the name by which what was left running is found
CALL = "    return torch.ops.opdock_good.silu_and_mul(x)\n"
PREDICATE = "def silu_takes(x):\n"


def _running() -> dict[str, str]:
    """Return the processes of the package, and children that the kit forked, by number (Linux)."""
    found = {}
    forkers = {str(each._process.pid) for each in template._templates.values()}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:  # it has ended since
            continue
        if SLEEP.encode() in words or parent in forkers:
            found[folder.name] = str(words)
    return found


def _in_provider(text: str) -> dict[str, str]:
    lines = "".join(f"    {line}\n" for line in text.splitlines())
    return edited(
        SILU, ("providers.py", CALL, lines + CALL), ("providers.py", PREDICATE, "done = []\n\n\n" + PREDICATE)
    )


def _in_predicate(text: str) -> dict[str, str]:
    return edited(SILU, ("providers.py", PREDICATE, f"{PREDICATE}    {text}\n"))


def _in_hook(text: str) -> dict[str, str]:
    return edited(ACTIVE, *hook(KERNELS_HOOK, text))


ONCE = "if not done:\n    done.append(1)\n    "
RESULTS = "provider.results[silu_and_mul/good]"

CASES = {
    "a provider hangs": (_in_provider("import threading\nthreading.Event().wait()"), RESULTS, "did not end within 3 s"),
    "a provider takes less than the limit for each input, and more for all": (
        _in_provider("if x.numel():\n    import time\n    time.sleep(0.03)"),
        "",
        "",
    ),
    "a provider crashes": (_in_provider("import ctypes\nctypes.string_at(0)"), RESULTS, "SIGSEGV"),
    "a provider exits": (_in_provider("raise SystemExit(0)"), RESULTS, "SystemExit"),
    "a provider ends the process": (_in_provider("import os\nos._exit(0)"), RESULTS, "exit code 0"),
    "a provider kills its group": (_in_provider("import os\nos.killpg(os.getpgid(0), 9)"), RESULTS, "SIGKILL"),
    "a provider closes every descriptor": (_in_provider("import os\nos.closerange(0, 256)"), RESULTS, "ended with"),
    "a provider wants a device that is not here": (_in_provider('x = x.to("xpu")'), RESULTS, "It raises"),
    "a provider allocates without end": (
        _in_provider(
            "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 33, 1 << 33))\n"
            "torch.empty(1 << 40, dtype=torch.uint8)"
        ),
        RESULTS,
        "allocate",
    ),
    "a predicate interrupts": (
        _in_predicate("raise KeyboardInterrupt"),
        "provider.predicate[silu_and_mul/good]",
        "KeyboardInterrupt",
    ),
    "a provider starts a process and hangs": (
        _in_provider(f'import subprocess, threading\nsubprocess.Popen(["sleep", "{SLEEP}"])\nthreading.Event().wait()'),
        RESULTS,
        "did not end within 3 s",
    ),
    "hooks start a process": (
        _in_hook(f'import subprocess\ncls.tool = subprocess.Popen(["sleep", "{SLEEP}"])'),
        "",
        "",
    ),
    "hooks start threads": (
        _in_hook("import threading\nfor _ in range(9):\n    threading.Thread(target=threading.Event().wait).start()"),
        "",
        "",
    ),
    "hooks fork, and both go on": (_in_hook("import os\nos.fork()"), "", ""),
    "hooks print what is no text": (_in_hook("import os\nos.write(1, bytes(range(256)) * 4096)"), "", ""),
    "hooks replace print and open": (_in_hook("import builtins\nbuiltins.print = builtins.open = None"), "", ""),
    "hooks delete the package": (
        _in_hook("import os, shutil\nshutil.rmtree(os.path.dirname(__file__))"),
        "platform.hooks_run_again",
        "import_kernels cannot run a second time: FileNotFoundError",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_package_that_harms_its_process_is_reported_and_leaves_nothing_running(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks after the one that failed run in a new process."""
    files, check, message = CASES[name]
    package.write(tmp_path, files)
    monkeypatch.syspath_prepend(str(tmp_path))
    skips = {"model.*": "the in-tree decoder takes seconds, and tells nothing here"}
    others = set(_running())  # of runs that go on while this one does
    report = testing.run(package.NAME, timeout=3.0, skips=skips)
    failed = {r.id: r.message for r in report.of("failed")}
    assert list(failed) == ([check] if check else []), json.dumps(failed, indent=1)
    assert message in failed.get(check, "")
    assert "layer.parts" in {r.id for r in report.results}
    assert {number: words for number, words in _running().items() if number not in others} == {}
