"""Ways in which an installed platform package is broken, and the error that each leads to."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

HEAD = """
from opdock import Platform, PlatformEnum
class P(Platform):
    _enum = PlatformEnum.OOT
    device_name = "broken"
    device_type = "cpu"
"""
DRIFTED = """
    @classmethod
    def get_device_capability(cls, device):
        return None
"""
HALF_WAY = """
    @classmethod
    def import_kernels(cls):
        import torch
        from opdock import CustomOp, ir
        class One(CustomOp):
            def forward_native(self, x):
                return x
        class Two(One):
            pass
        CustomOp.register("broken_one")(One)
        CustomOp.register("broken_two")(Two)
        @ir.ops.silu_and_mul.register_impl("broken")
        def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
            return x
        raise OSError("libbroken.so: undefined symbol: spin")
"""
REGISTER = "def register():\n    return __name__ + '.P'\n"


@dataclass(frozen=True)
class Case:
    """A broken package.

    Args:
        source: of its one module.
        said: what the error must say.
        doctor: what the verdict's reason in doctor must say; None: as ``said``, and the hooks did not run.
        requires: what its metadata requires.
    """

    source: str
    said: str
    doctor: str | None = field(default=None)
    requires: str = "opdock>=0.1"


CASES = {
    "import_error": Case(
        "import flux_capacitor\n" + REGISTER, "it needs module flux_capacitor, which is not installed"
    ),
    "raises": Case("def register():\n    raise OSError('driver too old')\n", "OSError: driver too old"),
    "system_exit": Case(
        "def register():\n    raise SystemExit('selection rejected')\n", "SystemExit: selection rejected"
    ),
    "empty": Case("def register():\n    return ''\n", "''"),
    "true": Case("def register():\n    return True\n", "True"),
    "class_object": Case(HEAD + "def register():\n    return P\n", "<class 'opdock_class_object.P'>"),
    "no_such_path": Case(HEAD + "def register():\n    return __name__ + '.Q'\n", "has no attribute 'Q'"),
    "no_subclass": Case("class P:\n    pass\n" + REGISTER, "is not a subclass of opdock.platforms.Platform"),
    "drifted": Case(HEAD + DRIFTED + REGISTER, "P.get_device_capability(device) does not fit the host's (device_id)"),
    "half_way": Case(HEAD + HALF_WAY + REGISTER, "OSError: libbroken.so: undefined symbol: spin", doctor=""),
    "too_new": Case(HEAD + REGISTER, "built for opdock>=9, this is opdock 0.1.0", requires="opdock>=9"),
}
EXITS = "import os\ndef register():\n    os._exit(7)\n"
HANGS = "import time\ndef register():\n    time.sleep(600)\n"
ERROR_OF_EACH = """
import opdock, os
from opdock.platforms import current
said = {}
for name in NAMES:
    os.environ["VLLM_PLUGINS"] = name
    try:
        current.resolve()
    except opdock.OpdockError as err:
        said[name] = [type(err).__name__, str(err), err.remedy]
tell(said)
"""


def _wheel(write: Callable[..., Path], name: str, source: str, requires: str) -> Path:
    """Write the wheel of one case; every one has a version of its own."""
    files = {f"opdock_{name}.py": source.replace('"broken"\n    device_type', f'"{name}"\n    device_type')}
    entry_points = {"vllm.platform_plugins": {name: f"opdock_{name}:register"}}
    number = [*CASES, "exits", "hangs", "healthy"].index(name)
    return write(f"opdock-{name.replace('_', '-')}", files, entry_points, version=f"3.{number}", requires=(requires,))


def test_b15_b16_a_failed_package_that_nobody_named_never_becomes_the_cpu_in_silence(
    env: Any, install: Callable[..., None], wheel: Callable[..., Path]
) -> None:
    """Alone it is an error; beside a healthy platform it is a warning, one for each failure."""
    names = ("import_error", "raises", "system_exit", "empty", "too_new")
    install(*(_wheel(wheel, name, CASES[name].source, CASES[name].requires) for name in names))
    done = env.run("import opdock; opdock.current_platform")
    assert done.returncode == 1 and "PlatformFailedError: Platform plugin failed" in done.stderr
    install(_wheel(wheel, "healthy", HEAD + REGISTER, "opdock"))
    platform, warnings = env.told(
        """
import logging, opdock
kept = []
handler = logging.Handler()
handler.emit = lambda record: kept.append(record.getMessage())
logging.getLogger("opdock").addHandler(handler)
tell([opdock.current_platform.device_name, kept])
"""
    )
    assert platform == "healthy" and len(warnings) == len(names)
    for name in names:
        who = f"{name}  opdock-{name.replace('_', '-')} 3."
        assert who in done.stderr and CASES[name].said in done.stderr
        assert [w for w in warnings if who in w and "is left out" in w and CASES[name].said in w]


@pytest.fixture(scope="module")
def broken(env: Any, tmp_path_factory: pytest.TempPathFactory, wheel_in: Callable[..., Path]) -> Any:
    """The environment with every broken package installed at once; each test says which may run."""
    folder = tmp_path_factory.mktemp("broken")
    sources = {name: (case.source, case.requires) for name, case in CASES.items()}
    sources |= {"exits": (EXITS, "opdock"), "hangs": (HANGS, "opdock"), "healthy": (HEAD + REGISTER, "opdock")}
    env.install(
        *(_wheel(partial(wheel_in, folder), name, source, requires) for name, (source, requires) in sources.items())
    )
    return env


def test_b15_b16_b21_each_broken_package_named_by_the_user_is_an_error_that_says_who_and_why(broken: Any) -> None:
    """Named in VLLM_PLUGINS, a failure is never passed over: distribution, version, cause and remedy."""
    said = broken.told(f"NAMES = {list(CASES)}\n" + ERROR_OF_EACH)
    assert list(said) == list(CASES)
    for number, (name, case) in enumerate(CASES.items()):
        kind, text, remedy = said[name]
        distribution = f"opdock-{name.replace('_', '-')}"
        assert kind == "PlatformFailedError", text
        assert f"{name}  {distribution} 3.{number}  opdock_{name}:register" in text
        assert case.said in text
        assert "leave it out: OPDOCK_PLATFORM=cpu" in remedy
        assert "OPDOCK_PLATFORM=cpu" in remedy and "VLLM_PLUGINS" in remedy


def test_b15_the_traceback_of_what_a_plugin_raised_is_in_the_error(broken: Any) -> None:
    """So that it reaches a log, with the plugin's file and line."""
    done = broken.run("import opdock; opdock.current_platform", VLLM_PLUGINS="raises")
    assert done.returncode == 1
    error = done.stderr[done.stderr.rindex("PlatformFailedError") :]
    assert "opdock_raises.py" in error and "line 2, in register" in error


def test_b16_what_a_platform_registered_before_its_hook_raised_is_undone(broken: Any) -> None:
    """Two op classes and a provider are gone, and the CPU can still be chosen in the process."""
    told = broken.told(
        """
import opdock, os
from opdock import ir
from opdock.platforms import current
from opdock.registry import op_registry
try:
    current.resolve()
except opdock.OpdockError as err:
    text = str(err)
left = [n for n in op_registry if n.startswith("broken")], list(ir.registry["silu_and_mul"].impls)
os.environ["OPDOCK_PLATFORM"] = "cpu"
del os.environ["VLLM_PLUGINS"]
tell([text, *left, opdock.current_platform.device_name])
""",
        VLLM_PLUGINS="half_way",
    )
    assert "What it registered is undone" in told[0]
    assert told[1:] == [[], ["native"], "cpu"]


def test_b12_b15_doctor_survives_them_all_and_gives_each_a_verdict_with_a_reason(broken: Any) -> None:
    """Also the one that ends the process and the one that never answers."""
    done = broken.opdock("doctor", "--json", OPDOCK_PROBE_TIMEOUT="5")
    told = json.loads(done.stdout)
    verdicts = {c["name"]: (c["verdict"], c["reason"]) for c in told["candidates"]}
    assert set(verdicts) == {*CASES, "exits", "hangs", "healthy"}
    for name, case in CASES.items():
        verdict, reason = verdicts[name]
        assert verdict == ("activated" if case.doctor is not None else "failed"), (name, reason)
        assert (case.said if case.doctor is None else case.doctor) in reason
    assert verdicts["exits"] == ("failed", "exited: the process ended with exit code 7")
    assert verdicts["hangs"] == ("failed", "timeout: no answer within 5 s")
    assert verdicts["healthy"][0] == "activated"
    assert done.returncode == 3  # half_way cannot be known before it is activated: two are active


def test_doctor_reports_the_hook_that_raises_when_the_platform_is_activated(broken: Any) -> None:
    """It does not raise; it exits with 3 and says what to do next."""
    done = broken.opdock("doctor", "--json", VLLM_PLUGINS="half_way")
    told = json.loads(done.stdout)
    assert done.returncode == 3 and told["platform"] is None
    assert "libbroken.so" in told["error"] and "opdock-half-way 3.9" in told["error"]
    assert "OPDOCK_PLATFORM=cpu" in told["next"]
    assert [s for s in told["order"] if s["step"] == "import_kernels" and "raised OSError" in s["detail"]]
    assert "Traceback" not in done.stderr
