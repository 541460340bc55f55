"""opdock_ascend.probe: three outcomes, each in words."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from opdock.errors import PlatformError
from opdock_ascend.probe import judge
from opdock_ascend.runtime import Answer
from opdock_ascend.torch_build import Build

FITTING = Build("2.13.0+cpu", "2.13.0", "==2.13.0.*")
OTHER_TORCH = Build("2.14.1+cu130", "2.13.0", "==2.13.0.*")
NO_CANN = Answer(missing="libascendcl.so: cannot open shared object file: No such file or directory")
SET = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
WHAT_TO_SET = "set TORCH_DEVICE_BACKEND_AUTOLOAD=0, or uninstall torch_npu"


def _says(answer: Answer) -> Callable[[], Answer]:
    return lambda: answer


def _not_asked() -> Answer:
    raise AssertionError("the runtime was asked")


def test_an_npu_with_cann_and_a_torch_npu_that_fits_is_usable() -> None:
    assert judge(FITTING, _says(Answer(devices=8, soc="Ascend910B3")), {}, device_files=True) is None
    assert judge(FITTING, _says(Answer(devices=1)), {}, device_files=False) is None


def test_without_torch_npu_and_without_a_driver_there_is_no_npu() -> None:
    found = judge(Build("2.13.0", None), _not_asked, {})
    assert found == "no Ascend NPU: torch_npu is not installed and the driver has no device files"


def test_without_torch_npu_a_machine_with_an_npu_is_told_which_one_to_install() -> None:
    found = judge(Build("2.13.0+cpu", None), _not_asked, {}, device_files=True)
    assert found == "an NPU is here, and torch_npu is not installed: pip install torch_npu==2.13.0"


def test_torch_npu_without_torch_is_told() -> None:
    assert judge(Build(None, "2.13.0", ""), _not_asked, {}) == "torch_npu 2.13.0 is installed, and PyTorch is not"


def test_a_torch_that_torch_npu_was_not_built_for_is_told_with_both_versions() -> None:
    found = judge(OTHER_TORCH, _not_asked, SET)
    assert found == "torch_npu 2.13.0 is built for torch==2.13.0.*, and torch is 2.14.1+cu130"


@pytest.mark.parametrize(("build", "ask"), [(FITTING, _says(NO_CANN)), (OTHER_TORCH, _not_asked)])
def test_where_torch_npu_breaks_importing_torch_the_reason_says_what_to_set(
    build: Build, ask: Callable[[], Answer]
) -> None:
    found = judge(build, ask, {})
    assert found is not None and WHAT_TO_SET in found
    assert WHAT_TO_SET not in str(judge(build, ask, SET))


def test_torch_npu_without_cann_is_told_with_the_loaders_words() -> None:
    found = judge(FITTING, _says(NO_CANN), SET)
    assert found == (
        "torch_npu 2.13.0 is installed, and CANN is not on the library path (libascendcl.so: cannot open shared object "
        "file: No such file or directory)"
    )


def test_a_cann_that_is_installed_and_not_on_the_path_is_told_with_its_script() -> None:
    found = judge(FITTING, _says(NO_CANN), SET, device_files=True, set_env="/usr/local/Ascend/cann/set_env.sh")
    assert found is not None
    assert found.startswith("an NPU is here, and torch_npu 2.13.0 is installed")
    assert found.endswith(": source /usr/local/Ascend/cann/set_env.sh first")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, "CANN's runtime sees no NPU"),
        (
            {"ASCEND_RT_VISIBLE_DEVICES": ""},
            "CANN's runtime sees no NPU, and ASCEND_RT_VISIBLE_DEVICES='' hides all of them",
        ),
        ({"ASCEND_RT_VISIBLE_DEVICES": "7"}, "CANN's runtime sees no NPU"),
    ],
)
def test_no_device_is_told_and_what_hides_them(environ: dict[str, str], expected: str) -> None:
    assert judge(FITTING, _says(Answer(devices=0)), environ) == expected


def test_an_error_of_the_runtime_on_a_machine_without_a_driver_is_no_npu() -> None:
    """CANN is installed on build machines too."""
    found = judge(FITTING, _says(Answer(code=507008)), {})
    assert found == "no Ascend NPU: CANN is installed, and aclrtGetDeviceCount answers with error 507008"


@pytest.mark.parametrize(
    ("answer", "device_files"),
    [
        (Answer(code=507899), True),
        (Answer(broken="no answer within 10 s"), True),
        (Answer(broken="no answer within 10 s"), False),
        (Answer(broken="the process ended with signal 11"), False),
    ],
)
def test_a_broken_driver_is_an_error_and_never_a_silent_run_on_the_cpu(answer: Answer, device_files: bool) -> None:
    with pytest.raises(PlatformError) as caught:
        judge(FITTING, _says(answer), {}, device_files=device_files)
    assert (answer.broken or f"error {answer.code}") in str(caught.value)
    assert "Remedy: see what npu-smi info says; OPDOCK_PLATFORM=cpu" in str(caught.value)


def test_the_probe_imports_neither_torch_nor_torch_npu_nor_the_platform() -> None:
    program = (
        "import sys, opdock_ascend, opdock_ascend.probe as p\n"
        "from opdock.errors import PlatformError\n"
        "try: p.probe()\n"
        "except PlatformError: pass\n"
        "assert not {'torch', 'torch_npu', 'opdock_ascend.platform'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
