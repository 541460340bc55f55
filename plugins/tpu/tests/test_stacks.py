"""Half installed stacks, end to end: a verdict with the reason, and a CPU that works.

Packages called jax, torchax and libtpu that are no more than metadata are made up on disk. They stand for nothing that
computes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HAS_JAX = importlib.util.find_spec("jax") is not None


def _run(program: str, path: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    dropped = ("OPDOCK_TPU_ON", "JAX_PLATFORMS", "OPDOCK_PLATFORM", "TPU_VISIBLE_CHIPS", "VLLM_PLUGINS")
    environ = {name: value for name, value in os.environ.items() if name not in dropped}
    parts = [*([] if path is None else [str(path)]), environ.get("PYTHONPATH", "")]
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, parts))
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environ | variables)


def _verdict(path: Path | None = None, **variables: str) -> tuple[str, str]:
    """Return the verdict and the reason of this package, as ``opdock doctor`` has them."""
    program = "from opdock.cli import main; import sys; sys.exit(main(['doctor', '--json']))"
    done = _run(program, path, **variables)
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    (found,) = [p for p in json.loads(done.stdout)["candidates"] if p["name"] == "opdock_tpu"]
    return found["verdict"], found["reason"]


def _made_up(folder: Path, **versions: str) -> Path:
    for name, version in versions.items():
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir()
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (info / "METADATA").write_text(text, encoding="utf-8")
    return folder


def test_without_a_tpu_it_declines_and_the_cpu_is_chosen() -> None:
    verdict, reason = _verdict()
    assert verdict == "declined"
    assert reason.startswith("no TPU: none is on the PCI bus")
    program = "import opdock; print(opdock.current_platform.device_name); import torch; print(torch.ones(2).sum())"
    for filtered in ({}, {"VLLM_PLUGINS": ""}, {"OPDOCK_PLATFORM": "cpu"}):
        done = _run(program, **filtered)
        assert done.stdout == "cpu\ntensor(2.)\n", done.stderr


def test_a_stand_in_whose_packages_do_not_fit_is_declined_with_the_versions(tmp_path: Path) -> None:
    made = _made_up(tmp_path, jax="0.4.1", jaxlib="0.4.1", torchax="0.0.13")
    verdict, reason = _verdict(made, OPDOCK_TPU_ON="cpu")
    assert verdict == "declined"
    assert reason.endswith("jax 0.4.1 is installed, and opdock-tpu needs jax>=0.10,<0.11")


@pytest.mark.skipif(HAS_JAX, reason="jax is installed: this is about environments without it")
def test_a_stand_in_without_jax_is_declined_with_what_to_install() -> None:
    verdict, reason = _verdict(OPDOCK_TPU_ON="cpu")
    assert verdict == "declined"
    assert "jax and jaxlib and torchax are not installed: pip install 'jax[tpu]==0.10.2' torchax==0.0.13" in reason


def test_pathways_without_its_package_is_declined(tmp_path: Path) -> None:
    verdict, reason = _verdict(JAX_PLATFORMS="proxy,cpu")
    assert verdict == "declined"
    assert reason.startswith("JAX_PLATFORMS asks for Pathways, and ")


def test_a_forced_platform_that_is_not_here_is_an_error_with_the_reason() -> None:
    program = "import opdock; opdock.current_platform.device_name"
    for name in ("tpu", "opdock_tpu"):
        done = _run(program, OPDOCK_PLATFORM=name)
        assert done.returncode != 0
        assert "no TPU: none is on the PCI bus" in done.stderr


def test_to_any_host_but_opdock_the_entry_point_is_silent() -> None:
    done = _run("import opdock_tpu, sys; print(opdock_tpu.register(), 'torch' in sys.modules)", OPDOCK_TPU_ON="cpu")
    assert done.stdout == "None False\n", done.stderr


@pytest.mark.usefixtures("torchax")
def test_one_privateuse1_device_fits_into_a_process_and_the_error_names_the_other() -> None:
    program = (
        "import torch\n"
        "torch.utils.rename_privateuse1_backend('other')\n"
        "from opdock_tpu.platform import TpuPlatform\n"
        "TpuPlatform.import_kernels()\n"
    )
    done = _run(program, OPDOCK_TPU_ON="cpu")
    assert "another package has made PrivateUse1 its device 'other', and a process has room for one" in done.stderr
    assert "already been set" not in done.stderr


@pytest.mark.usefixtures("torchax")
def test_choosing_the_platform_starts_no_client_of_xla() -> None:
    """Engines choose the platform before they fork."""
    program = (
        "import opdock; opdock.current_platform.device_type\n"
        "from jax._src import xla_bridge; print(xla_bridge.backends_are_initialized())\n"
    )
    done = _run(program, OPDOCK_TPU_ON="cpu", OPDOCK_PLATFORM="tpu")
    assert done.stdout == "False\n", done.stderr


HANGING = """
from opdock_tpu import runtime, torch_build
runtime.ask.__kwdefaults__.update(bus={bus!r}, timeout=2.0)  # the bus of a machine with a TPU
torch_build.read = lambda: torch_build.Builds("2.13.0", "0.0.13", "0.10.2", "0.10.2", "0.0.42.1")
import opdock
print(opdock.current_platform.device_name)
import torch
print(torch.ones(2).sum())
"""


def test_a_libtpu_that_hangs_is_an_error_with_the_reason_and_the_cpu_works_without_the_plugin(tmp_path: Path) -> None:
    """Opening a pipe that nobody writes to waits for ever, as some drivers do."""
    chip = tmp_path / "bus" / "0000:00:05.0"
    chip.mkdir(parents=True)
    (chip / "vendor").write_text("0x1ae0\n", encoding="utf-8")
    (chip / "device").write_text("0x0063\n", encoding="utf-8")
    os.mkfifo(tmp_path / "libtpu.so")
    program = HANGING.format(bus=str(tmp_path / "bus"))
    library = {"TPU_LIBRARY_PATH": str(tmp_path / "libtpu.so")}
    done = _run(program, **library)
    assert done.returncode != 0
    assert "libtpu does not work: no answer within 2 s" in done.stderr
    assert "OPDOCK_PLATFORM=cpu" in done.stderr
    for without in ({"VLLM_PLUGINS": ""}, {"OPDOCK_PLATFORM": "cpu"}):
        assert _run(program, **library, **without).stdout == "cpu\ntensor(2.)\n"


@pytest.mark.usefixtures("torchax")
def test_two_privateuse1_plugins_that_are_both_active_give_opdocks_error_and_not_torchs(tmp_path: Path) -> None:
    (tmp_path / "opdock_other.py").write_text("def register():\n    return 'opdock_other:P'\n", encoding="utf-8")
    info = _made_up(tmp_path, opdock_other="1.0") / "opdock_other-1.0.dist-info"
    with (info / "METADATA").open("a", encoding="utf-8") as metadata:
        metadata.write("Requires-Dist: opdock>=0.1\n")
    entry = "[vllm.platform_plugins]\nopdock_other = opdock_other:register\n"
    (info / "entry_points.txt").write_text(entry, encoding="utf-8")
    (info / "RECORD").write_text("opdock_other.py,,\n", encoding="utf-8")
    program = "import opdock; print(opdock.current_platform.device_name)"
    done = _run(program, tmp_path, OPDOCK_TPU_ON="cpu")
    assert "PlatformConflictError" in done.stderr
    assert "opdock_tpu" in done.stderr and "opdock_other" in done.stderr
    assert _run(program, tmp_path, OPDOCK_TPU_ON="cpu", OPDOCK_PLATFORM="tpu").stdout == "tpu\n"
