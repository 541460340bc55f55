"""opdock_tpu.probe: three outcomes, each in words."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from opdock.errors import PlatformError
from opdock_tpu.probe import judge
from opdock_tpu.runtime import Answer
from opdock_tpu.torch_build import Builds

FITTING = Builds("2.13.0+cpu", "0.0.13", "0.10.2", "0.10.2", "0.0.42.1", None, "==0.0.42.*")
V5E = Answer(4, "v5e")


def _says(*answers: Answer) -> Callable[[str], Answer]:
    """Return what asks the bus first, then opens the library; the last answer is that of both if there is one."""
    left = list(answers)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


def _not_asked(_: str) -> Answer:
    raise AssertionError("the machine was looked at")


def test_a_tpu_with_a_libtpu_and_a_torchax_that_fit_is_usable() -> None:
    assert judge(FITTING, _says(V5E), {}, library="/x/libtpu.so", device_files=True) is None


def test_without_libtpu_and_without_a_chip_there_is_no_tpu() -> None:
    found = judge(Builds("2.13.0"), _says(Answer()), {})
    assert found == "no TPU: none is on the PCI bus; libtpu is not installed either"


def test_libtpu_without_a_tpu_is_told_with_its_version() -> None:
    """Libtpu compiles for TPUs on machines without one."""
    found = judge(FITTING, _says(Answer()), {}, library="/x/libtpu.so")
    assert found == "no TPU: none is on the PCI bus, and libtpu 0.0.42.1 is installed"


@pytest.mark.parametrize(
    ("installed", "expected"),
    [
        (replace(FITTING, libtpu=None), "libtpu is not installed: pip install 'jax[tpu]==0.10.2' torchax==0.0.13"),
        (Builds("2.13.0"), "jax and jaxlib and torchax and libtpu are not installed: pip install"),
        (replace(FITTING, torchax=None), "torchax is not installed"),
        (
            replace(FITTING, torch="2.15.0+cu130"),
            "torch 2.15.0+cu130 is installed, and opdock-tpu needs torch>=2.11,<2.14",
        ),
        (replace(FITTING, jax="0.9.1", jaxlib="0.9.1"), "jax 0.9.1 is installed, and opdock-tpu needs jax>=0.10,<0.11"),
        (replace(FITTING, libtpu="0.0.30"), "libtpu 0.0.30 is installed, and jax 0.10.2 needs libtpu==0.0.42.*"),
        (replace(FITTING, jaxlib="0.10.1"), "jax 0.10.2 and jaxlib 0.10.1 are of different releases"),
    ],
)
def test_beside_a_tpu_what_is_missing_or_does_not_fit_is_told(installed: Builds, expected: str) -> None:
    found = judge(installed, _says(V5E), {}, library="/x/libtpu.so")
    assert found is not None
    assert found.startswith(f"a TPU v5e is here, and {expected}")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"TPU_VISIBLE_CHIPS": ""}, "TPU_VISIBLE_CHIPS='' hides all of them"),
        ({"TPU_VISIBLE_DEVICES": "-1"}, "TPU_VISIBLE_DEVICES='-1' hides all of them"),
        ({"JAX_PLATFORMS": "cpu"}, "JAX_PLATFORMS='cpu' leaves TPUs out"),
    ],
)
def test_variables_that_keep_the_process_from_a_tpu_are_told(environ: dict[str, str], expected: str) -> None:
    assert judge(FITTING, _says(V5E), environ, library="/x/libtpu.so") == f"a TPU v5e is here, and {expected}"


def test_a_libtpu_that_cannot_be_opened_is_told_with_the_loaders_words() -> None:
    opened = Answer(4, "v5e", missing="libtpu.so: wrong ELF class")
    found = judge(FITTING, _says(V5E, opened), {}, library="/x/libtpu.so")
    assert found == "a TPU v5e is here, and libtpu 0.0.42.1 cannot be opened (libtpu.so: wrong ELF class)"
    named = judge(FITTING, _says(V5E, opened), {"TPU_LIBRARY_PATH": "/x/libtpu.so"}, library="/x/libtpu.so")
    assert named == "a TPU v5e is here, and TPU_LIBRARY_PATH cannot be opened (libtpu.so: wrong ELF class)"


@pytest.mark.parametrize("how", ["no answer within 10 s", "the process that asked ended with signal 11"])
def test_a_driver_that_hangs_or_crashes_beside_a_tpu_is_an_error_and_never_a_silent_run_on_the_cpu(how: str) -> None:
    with pytest.raises(PlatformError) as caught:
        judge(FITTING, _says(V5E, Answer(broken=how)), {}, library="/x/libtpu.so")
    assert f"libtpu does not work: {how}." in str(caught.value)
    assert "OPDOCK_PLATFORM=cpu" in str(caught.value)


def test_a_bus_that_cannot_be_read_is_an_error_only_where_a_tpus_driver_is() -> None:
    hanging = _says(Answer(broken="no answer within 10 s"))
    assert judge(FITTING, hanging, {}) == "no TPU was found: the PCI bus cannot be read, no answer within 10 s"
    with pytest.raises(PlatformError, match="The PCI bus cannot be read"):
        judge(FITTING, hanging, {}, device_files=True)


@pytest.mark.parametrize("value", ["proxy", "proxy,cpu", "Proxy"])
def test_behind_pathways_neither_a_chip_nor_libtpu_is_looked_for(value: str) -> None:
    there = replace(FITTING, libtpu=None, pathways="0.1.9")
    assert judge(there, _not_asked, {"JAX_PLATFORMS": value}) is None
    without = judge(replace(there, pathways=None), _not_asked, {"JAX_PLATFORMS": value})
    assert without is not None
    assert without.startswith("JAX_PLATFORMS asks for Pathways, and pathwaysutils is not installed")
    unfit = judge(replace(there, jax=None), _not_asked, {"JAX_PLATFORMS": value})
    assert unfit is not None
    assert "Pathways, and jax is not installed" in unfit


def test_xla_on_the_cpu_stands_in_where_it_is_asked_for_and_installed() -> None:
    asked = {"OPDOCK_TPU_ON": "cpu"}
    assert judge(replace(FITTING, libtpu=None), _not_asked, asked) is None
    found = judge(Builds("2.13.0"), _not_asked, asked)
    assert found is not None
    assert found.startswith(
        "OPDOCK_TPU_ON=cpu asks for XLA on the CPU, and jax and jaxlib and torchax are not installed"
    )


def test_the_probe_imports_neither_torch_nor_jax_nor_the_platform() -> None:
    program = (
        "import sys, opdock_tpu, opdock_tpu.probe as p\n"
        "p.why_not()\n"
        "assert not {'torch', 'jax', 'torchax', 'libtpu', 'opdock_tpu.platform'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
