"""``--run``: what an entry point does in a child, however it behaves."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from opdock.testing.contract.running import run_entry

_serial = itertools.count()
GOOD = 'import opdock\nregister = opdock.platform_plugin("{m}:P")\n'
CLASS = """
class P(opdock.Platform):
    _enum = opdock.PlatformEnum.OOT
    device_name = device_type = "cpu"
    dispatch_key = "CPU"
"""


def run(folder: Path, source: str, timeout: float = 60.0) -> dict[str, str]:
    """Return message and reason of each finding, by rule."""
    module = f"run_plug_{next(_serial)}"
    (folder / f"{module}.py").write_text(source.replace("{m}", module))
    found = run_entry("plug", f"{module}:register", str(folder), timeout=timeout)
    return {f.rule.removeprefix("opdock/"): f"{f.level} {f.message} {f.why}" for f in found}


def test_a_clean_one_is_measured(tmp_path: Path) -> None:
    """Activated too, with nothing to tell."""
    told = run(
        tmp_path,
        GOOD
        + "class _Lazy: ...\ndef __getattr__(name):\n"
        + "".join(f"    {line}\n" for line in CLASS.strip().splitlines())
        + "    if name == 'P':\n        return P\n"
        "    raise AttributeError(name)\n",
    )
    assert set(told) == {"run-measured"}
    assert "1 modules" in told["run-measured"]


def test_providers_may_be_registered_once_the_kernels_are_loaded(tmp_path: Path) -> None:
    """The hooks run in the host's order, and each finds what it finds in a real activation."""
    provider = (
        "    @classmethod\n    def import_ir_kernels(cls):\n"
        "        import torch\n        from opdock import ir\n"
        "        def norm(x: torch.Tensor) -> torch.Tensor: return ir.native.silu_and_mul(x)\n"
        "        ir.ops.silu_and_mul.register_impl('plug')(norm)\n"
    )
    assert set(run(tmp_path, GOOD + CLASS + provider)) <= {"run-measured", "run-imports-torch"}


def test_one_that_declines_is_not_activated(tmp_path: Path) -> None:
    """With its reason."""
    told = run(tmp_path, "import opdock\ndef register():\n    return opdock.decline('no chip')\n")
    assert told["run-declined"].endswith("declined here: no chip. ")


@pytest.mark.parametrize(
    ("source", "rule", "words"),
    [
        ("raise ValueError('bad\x1b[2J')", "run-failed", "ValueError"),
        ("def register(): return 7", "run-failed", "expected a class path"),
        ("import sys; sys.exit(3)", "run-failed", "SystemExit: 3"),
        ("import os; os._exit(3)", "run-exited", "exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "run-exited", "signal 9"),
        ("import os; os.write(2, b'\\xff\\x00'); os._exit(1)", "run-exited", "\\xff"),
        ("def register(): return '{m}:Gone'", "run-failed", "Gone"),
        ("def register(): return '{m}:register'", "run-failed", "is not a subclass"),
        (
            GOOD + CLASS + "    @classmethod\n    def import_kernels(cls): raise OSError('lib')",
            "run-failed",
            "OSError: lib",
        ),
        (GOOD + CLASS + "    @classmethod\n    def set_device(cls): ...", "run-failed", "does not fit"),
        (
            GOOD + CLASS + "    @classmethod\n    def register_oot(cls): import os; os._exit(0)",
            "run-exited",
            "activating",
        ),
    ],
)
def test_one_that_misbehaves_is_a_finding(source: str, rule: str, words: str, tmp_path: Path) -> None:
    """Never a crash of the check."""
    told = run(tmp_path, source)
    assert told[rule].startswith("error") and words in told[rule]


def test_one_that_hangs_ends_in_time(tmp_path: Path) -> None:
    """With its children."""
    told = run(tmp_path, "import subprocess, time\nsubprocess.Popen(['sleep', '60'])\ntime.sleep(60)\n", timeout=2.0)
    assert set(told) == {"run-timeout"}


def test_one_that_forks_is_asked_once(tmp_path: Path) -> None:
    """The child of the fork says nothing."""
    told = run(tmp_path, "import os\nos.fork()\ndef register(): return None\n")
    assert set(told) <= {"run-measured", "run-declined"}


def test_side_effects_are_told(tmp_path: Path) -> None:
    """Environment, threads, output, torch."""
    told = run(
        tmp_path,
        "import os, threading, time, torch\nos.environ['CHIP_X'] = '1'\nprint('hello')\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True, name='pump').start()\n"
        "def register(): return None\n",
    )
    assert "CHIP_X" in told["run-environ"] and "pump" in told["run-threads"] and "hello" in told["run-output"]
    assert "imports torch" in told["run-imports-torch"] and "torch" in told["run-measured"]
