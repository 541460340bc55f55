"""Half installed stacks, end to end: a verdict with the reason, and a CPU that works where it can.

A package called torch_npu that cannot be imported is made up on disk. It stands for nothing that computes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFLICT = "TORCH_DEVICE_BACKEND_AUTOLOAD"


def _run(program: str, path: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    dropped = ("LD_LIBRARY_PATH", "OPDOCK_ASCEND_STANDIN", CONFLICT)
    environ = {name: value for name, value in os.environ.items() if name not in dropped}
    kept = [part for part in environ.get("PYTHONPATH", "").split(os.pathsep) if Path(part).name != "standin"]
    environ["PYTHONPATH"] = os.pathsep.join([*([] if path is None else [str(path)]), *kept])
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environ | variables)


def _verdict(path: Path | None = None, **variables: str) -> tuple[str, str]:
    """Return the verdict and the reason of this package, as ``opdock doctor`` has them."""
    program = "from opdock.cli import main; import sys; sys.exit(main(['doctor', '--json']))"
    done = _run(program, path, **variables)
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    (found,) = [p for p in json.loads(done.stdout)["candidates"] if p["name"] == "opdock_ascend"]
    return found["verdict"], found["reason"]


def _made_up(folder: Path, version: str, torch: str) -> Path:
    (folder / "torch_npu").mkdir()
    source = "raise ImportError('libhccl.so: cannot open shared object file')\n"
    (folder / "torch_npu" / "__init__.py").write_text(source, encoding="utf-8")
    info = folder / f"torch_npu-{version}.dist-info"
    info.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: torch_npu\nVersion: {version}\nRequires-Dist: torch=={torch}\n"
    (info / "METADATA").write_text(metadata, encoding="utf-8")
    (info / "entry_points.txt").write_text("[torch.backends]\ntorch_npu = torch_npu:_autoload\n", encoding="utf-8")
    return folder


def _torch_version() -> str:
    import torch

    return torch.__version__.partition("+")[0]


def test_a_torch_npu_for_another_torch_is_declined_with_both_versions(tmp_path: Path) -> None:
    verdict, reason = _verdict(_made_up(tmp_path, "0.1.0", "0.1.*"))
    assert verdict == "declined"
    assert f"torch_npu 0.1.0 is built for torch==0.1.*, and torch is {_torch_version()}" in reason
    assert "set TORCH_DEVICE_BACKEND_AUTOLOAD=0" in reason


def test_a_torch_npu_without_cann_is_declined_and_the_reason_says_what_to_set(tmp_path: Path) -> None:
    version = _torch_version()
    made = _made_up(tmp_path, version, f"{version}.*")
    for variables, said in (({}, True), ({CONFLICT: "0"}, False)):
        verdict, reason = _verdict(made, **variables)
        assert verdict == "declined"
        assert f"torch_npu {version} is installed, and CANN is not on the library path (libascendcl.so:" in reason
        assert ("set TORCH_DEVICE_BACKEND_AUTOLOAD=0" in reason) is said


def test_with_what_the_reason_says_the_cpu_works_beside_it(tmp_path: Path) -> None:
    made = _made_up(tmp_path, "0.1.0", "0.1.*")
    program = "import opdock; print(opdock.current_platform.device_name); import torch; print(torch.ones(2).sum())"
    assert _run("import torch", made).returncode != 0
    for filtered in ({}, {"VLLM_PLUGINS": ""}):
        done = _run(program, made, **{CONFLICT: "0"}, **filtered)
        assert done.stdout == "cpu\ntensor(2.)\n", done.stderr


def test_a_runtime_that_hangs_is_an_error_with_the_reason_and_the_cpu_works_without_the_plugin(tmp_path: Path) -> None:
    """Opening a pipe that nobody writes to waits for ever, as some drivers do."""
    version = _torch_version()
    made = _made_up(tmp_path, version, f"{version}.*")
    os.mkfifo(tmp_path / "libascendcl.so")
    hanging = {CONFLICT: "0", "LD_LIBRARY_PATH": str(tmp_path)}
    verdict, reason = _verdict(made, **hanging)
    assert verdict == "failed"
    assert "The Ascend driver does not work: no answer within 10 s" in reason
    program = "import opdock; print(opdock.current_platform.device_name); import torch; print(torch.ones(2).sum())"
    for without in ({"VLLM_PLUGINS": ""}, {"OPDOCK_PLATFORM": "cpu"}):
        done = _run(program, made, **hanging, **without)
        assert done.stdout == "cpu\ntensor(2.)\n", done.stderr


def test_a_forced_platform_that_is_not_here_is_an_error_with_the_reason(tmp_path: Path) -> None:
    made = _made_up(tmp_path, "0.1.0", "0.1.*")
    program = "import opdock; opdock.current_platform.device_name"
    for name in ("ascend", "opdock_ascend"):
        done = _run(program, made, OPDOCK_PLATFORM=name)
        assert done.returncode != 0
        assert "torch_npu 0.1.0 is built for torch==0.1.*" in done.stderr


def test_to_any_host_but_opdock_the_entry_point_is_silent(tmp_path: Path) -> None:
    made = _made_up(tmp_path, "0.1.0", "0.1.*")
    done = _run("import opdock_ascend, sys; print(opdock_ascend.register(), 'torch' in sys.modules)", made)
    assert done.stdout == "None False\n", done.stderr


@pytest.mark.skipif(importlib.util.find_spec("torch_npu") is None, reason="torch_npu is not installed")
def test_the_real_torch_npu_without_cann_breaks_importing_torch_and_doctor_says_so() -> None:
    broken = _run("import torch")
    assert broken.returncode != 0
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in broken.stderr
    verdict, reason = _verdict()
    assert verdict == "declined"
    assert "CANN is not on the library path (libascendcl.so: cannot open shared object file" in reason
    assert "set TORCH_DEVICE_BACKEND_AUTOLOAD=0" in reason
    program = "import opdock; print(opdock.current_platform.device_name); import torch; print(torch.ones(2).sum())"
    assert _run(program, **{CONFLICT: "0"}).stdout == "cpu\ntensor(2.)\n"


@pytest.mark.usefixtures("torch_npu")
def test_one_privateuse1_device_fits_into_a_process_and_the_error_names_the_other() -> None:
    program = (
        "import torch\n"
        "torch.utils.rename_privateuse1_backend('other')\n"
        "from opdock_ascend.platform import AscendPlatform\n"
        "AscendPlatform.import_kernels()\n"
    )
    environ = {**os.environ, CONFLICT: "0"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environ)
    assert "another package has made PrivateUse1 its device 'other', and a process has room for one" in done.stderr
    assert "already been set" not in done.stderr


@pytest.mark.usefixtures("torch_npu")
def test_two_privateuse1_plugins_that_are_both_active_give_opdocks_error_and_not_torchs(tmp_path: Path) -> None:
    (tmp_path / "opdock_other.py").write_text("def register():\n    return 'opdock_other:P'\n", encoding="utf-8")
    info = tmp_path / "opdock_other-1.0.dist-info"
    info.mkdir()
    metadata = "Metadata-Version: 2.1\nName: opdock-other\nVersion: 1.0\nRequires-Dist: opdock>=0.1\n"
    (info / "METADATA").write_text(metadata, encoding="utf-8")
    entry = "[vllm.platform_plugins]\nopdock_other = opdock_other:register\n"
    (info / "entry_points.txt").write_text(entry, encoding="utf-8")
    (info / "RECORD").write_text("opdock_other.py,,\n", encoding="utf-8")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), os.environ["PYTHONPATH"]))}
    command = [sys.executable, "-c", "import opdock; opdock.current_platform.device_name"]
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    assert "PlatformConflictError" in done.stderr
    assert "opdock_ascend" in done.stderr and "opdock_other" in done.stderr
    assert "register_privateuse1_backend" not in done.stderr
    forced = subprocess.run(
        [*command[:2], "import opdock; print(opdock.current_platform.device_name)"],
        capture_output=True,
        text=True,
        env=environ | {"OPDOCK_PLATFORM": "ascend"},
    )
    assert forced.stdout.splitlines()[-1] == "npu", forced.stderr
