"""Packages that were written for vLLM, as they are published, installed beside opdock: listed, judged, never run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

WHEELS = (
    "vllm-ascend==0.26.0rc1",
    "vllm-mblt==0.8.0",
    "vllm-musa==0.1.1",
    "vllm-spyre==2.0.0rc9",
    "vllm-spyre-next==0.1.0",
    "spyre-inference==0.0.0",
    "pace-vllm==1.3.0",
    "vllm-swift==0.3.2",
)
GROUPS = ("vllm.platform_plugins", "vllm.general_plugins", "opdock.plugins")

# What an error must name, besides the distribution: what the package misses here.
MISSES = {
    "vllm_ascend": "needs module vllm, which is not installed: written for vLLM",
    "vllm-mblt": "needs module vllm, which is not installed: written for vLLM",
    "vllm-musa": "not installed: torchada, torch_musa",
    "vllm-spyre": "needs module vllm, which is not installed: written for vLLM",
    "vllm-spyre-next": "needs module vllm, which is not installed: written for vLLM",
    "spyre-inference": "does not ship module vllm_spyre",
    "pace-vllm": "not installed: vllm",
    "vllm-swift": "No module named",
}
FOREIGN_SILENT = """
try:
    import flux_capacitor
except ImportError:
    flux_capacitor = None
def register():
    return "gone.away.Platform" if flux_capacitor else None
"""
# Every event that code of the packages would cause, in the process and all that it does to its environment.
WATCHED = """
import os, sys
before = dict(os.environ)
ran = []
def hook(event, args):
    if event == "exec" and any(part in args[0].co_filename for part in PARTS):
        ran.append(args[0].co_filename)
sys.addaudithook(hook)
import opdock
name = opdock.current_platform.device_name
from opdock.discovery import metadata
metadata.scan()
import torch
loaded = [m for m in sys.modules if m.partition(".")[0] in PARTS]
tell([name, ran, loaded, {k: v for k, v in os.environ.items() if before.get(k) != v}])
"""


@pytest.fixture(scope="module")
def real(env: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The environment with the published packages, together, without what they require."""
    folder = tmp_path_factory.mktemp("download")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    command += ["--retries", "1", "--timeout", "20"]
    try:
        done = subprocess.run([*command, *WHEELS], capture_output=True, text=True, timeout=180)
    except subprocess.TimeoutExpired:
        pytest.skip("the published packages cannot be downloaded: pip took more than 180 s")
    if done.returncode != 0:
        pytest.skip(f"the published packages cannot be downloaded: {done.stderr.strip().splitlines()[-1]}")
    env.install(*sorted(folder.glob("*.whl")))
    return env


@pytest.fixture(scope="module")
def distributions(real: Any) -> list[Distribution]:
    """What the standard library reads of the packages."""
    site = next((real.folder / "lib").glob("python*/site-packages"))
    wanted = {pin.partition("==")[0].replace("-", "_") for pin in WHEELS}
    found = [PathDistribution(path) for path in sorted(site.glob("*.dist-info"))]
    return [dist for dist in found if dist.metadata["Name"].replace("-", "_") in wanted]


def test_plugins_lists_every_entry_point_with_its_distribution(real: Any, distributions: list[Distribution]) -> None:
    """As the standard library reads them, one by one."""
    assert len(distributions) == len(WHEELS)
    done = real.opdock("plugins", "--json")
    assert done.returncode == 0, done.stderr
    listed = {
        (p["group"], p["name"], p["target"], p["distribution"], p["version"])
        for p in json.loads(done.stdout)["plugins"]
    }
    expected = {
        (entry.group, entry.name, entry.value, dist.metadata["Name"], dist.version)
        for dist in distributions
        for entry in dist.entry_points
        if entry.group in GROUPS
    }
    assert listed == expected and len(listed) >= 13


def test_doctor_gives_each_the_verdict_foreign_and_chooses_the_cpu(real: Any) -> None:
    """Two of them share a name and most would say that they are active: neither matters, they are not asked."""
    done = real.child(str(real.folder / "bin" / "opdock"), "doctor", "--json", timeout=30)  # it takes one second
    told = json.loads(done.stdout)
    assert done.returncode == 0 and told["platform"] == "cpu"
    assert {c["distribution"] for c in told["candidates"]} == set(MISSES)
    for candidate in told["candidates"]:
        assert candidate["verdict"] == "foreign"
        assert candidate["reason"] == f"{candidate['distribution']} does not require opdock: written for another host"
    assert len(told["other_plugins"]) == 5
    assert {(p["verdict"], p["may_run"]) for p in told["other_plugins"]} == {("foreign", False)}


def test_none_of_their_code_runs_when_the_platform_is_chosen(real: Any, distributions: list[Distribution]) -> None:
    """No module of theirs is executed or loaded, and the process's environment is untouched."""
    tops = {
        str(file).partition("/")[0].removesuffix(".py")
        for dist in distributions
        for file in dist.files or ()
        if str(file).endswith(".py") and not str(file).startswith("..")
    }
    assert {"vllm_ascend", "vllm_musa_platform", "pace_vllm", "vllm_spyre"} <= tops
    told = real.told(f"PARTS = {sorted(tops)!r}\n" + WATCHED)
    assert told == ["cpu", [], [], {}]


def test_doctor_writes_nothing_that_only_their_code_would_write(real: Any, distributions: list[Distribution]) -> None:
    """Python compiles a module when it first runs: no compiled file of theirs exists after doctor and plugins."""
    assert real.opdock("doctor").returncode == 0
    assert real.opdock("plugins").returncode == 0
    for dist in distributions:
        for file in dist.files or ():
            path = Path(str(dist.locate_file(file)))
            if path.suffix == ".py":
                assert not list(path.parent.glob(f"__pycache__/{path.stem}.*.pyc")), path


@pytest.mark.parametrize("distribution", MISSES)
def test_forced_each_ends_in_an_error_that_says_what_it_misses(real: Any, distribution: str) -> None:
    """In bounded time; asked in a child, so that nothing of it is in the process that asked."""
    top = distribution.replace("-", "_")
    told = real.told(
        f"""
import opdock, os, sys
before = dict(os.environ)
try:
    opdock.current_platform
except opdock.OpdockError as err:
    loaded = [m for m in sys.modules if m.startswith({top!r})]
    tell([type(err).__name__, str(err), err.remedy, loaded, os.environ == before])
""",
        OPDOCK_PLATFORM=distribution,
        OPDOCK_PROBE_TIMEOUT="20",
    )
    kind, text, remedy, loaded, same = told
    assert kind == "PlatformFailedError" and loaded == [] and same
    assert distribution in text and MISSES[distribution] in text
    assert "OPDOCK_PLATFORM=cpu" in remedy


def test_b05_the_name_that_two_of_them_share_cannot_be_forced_by_name(real: Any) -> None:
    """Both are named; their distributions' names tell them apart."""
    done = real.run("import opdock; opdock.current_platform", OPDOCK_PLATFORM="spyre")
    assert done.returncode == 1 and "PlatformConflictError" in done.stderr
    assert "spyre-inference 0.0.0" in done.stderr and "vllm-spyre 2.0.0rc9" in done.stderr


def test_a_foreign_package_that_hides_what_it_misses_is_told_by_its_imports(
    env: Any, install: Callable[..., None], wheel: Callable[..., Path]
) -> None:
    """It catches its own ImportError and returns None without a word."""
    entry = {"vllm.platform_plugins": {"silent": "vllm_silent:register"}}
    install(wheel("vllm-silent", {"vllm_silent.py": FOREIGN_SILENT}, entry, requires=("vllm",)))
    done = env.run("import opdock; opdock.current_platform", OPDOCK_PLATFORM="silent")
    assert done.returncode == 1
    assert "vllm-silent does not require opdock" in done.stderr
    assert "no reason given; not installed: flux_capacitor" in done.stderr
