"""opdock_cuda.visible: the rules of CUDA_VISIBLE_DEVICES, and what the driver itself counts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from opdock_cuda import nvml
from opdock_cuda.nvml import Facts
from opdock_cuda.visible import VARIABLE, hides_all, select

GPUS = [Facts("NVIDIA H200", f"GPU-{uuid}", 2**37, (9, 0)) for uuid in ("aa11", "aa22", "bb33", "cc44")]
PARTS = tuple(Facts(f"MIG {i}", f"MIG-p{i}0", 2**34, (9, 0), place=f"MIG-GPU-mm55/{i}/0") for i in (1, 2))
SPLIT = Facts("NVIDIA H200", "GPU-mm55", 2**37, (9, 0), mig=True, instances=PARTS)
UNSPLIT = Facts("NVIDIA H200", "GPU-nn66", 2**37, (9, 0), mig=True)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        (" ", []),
        ("2,0", [2, 0]),
        (" 2 , 0 ", [2, 0]),
        ("+1", [1]),
        ("03", [3]),
        ("1gpu2,2ampere", [1, 2]),  # a number ends where its digits do
        ("-1", []),
        ("0,-1,1", [0]),
        ("0,2,-1,1", [0, 2]),  # the programming guide's example
        ("1,9,2", [1]),
        ("4", []),
        ("0,,1", [0]),
        ("0,1,0", []),  # a repeated entry hides all
        ("NoDevFiles", []),
        ("gpu-aa11", []),
        ("GPU-bb33", [2]),
        ("GPU-bb", [2]),
        ("GPU-aa", []),  # two match
        ("GPU-aa2,GPU-c", [1, 3]),
        ("GPU-bb,GPU-zz,GPU-cc", [2]),
        ("GPU-bb,GPU-bb33", []),  # the same GPU, twice
        ("GPU-bb,0", [2]),  # a list has one kind of entries
        ("0,GPU-bb", [0]),
        ("MIG-p10", []),
        ("-0", [0]),
        ("-2", []),
        ("GPU-BB33", [2]),
        ("GPU-", []),
        ("MIG-bb33", [2]),  # as the driver of an H200 counts it
        ("MIG-", []),
    ],
)
def test_the_gpus_that_cuda_counts_are_those_of_its_rules(value: str | None, expected: list[int]) -> None:
    assert [GPUS.index(gpu) for gpu in select(value, GPUS)] == expected
    assert bool(hides_all(value, GPUS)) == (not expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "MIG 1"),  # one MIG device, and no other GPU beside it
        ("0", "NVIDIA H200"),
        ("1", "MIG 1"),
        ("0,1", "MIG 1"),
        ("GPU-mm55", "MIG 1"),
        ("MIG-p20", "MIG 2"),
        ("MIG-p2", "MIG 2"),
        ("MIG-GPU-mm55/2/0", "MIG 2"),
        ("MIG-p20,MIG-p10", "MIG 2"),
        ("MIG-p", None),  # two match
        ("MIG-GPU-mm55/3/0", None),
        ("MIG-GPU-aa11/1/0", None),
        ("MIG-p20,MIG-p20", None),
    ],
)
def test_of_mig_devices_a_process_sees_one(value: str | None, expected: str | None) -> None:
    found = select(value, [GPUS[0], SPLIT])
    assert [facts.name for facts in found] == ([expected] if expected else [])


def test_what_follows_a_whole_uuid_is_not_read() -> None:
    whole = "GPU-01234567-89ab-cdef-0123-456789abcdef"
    gpu = Facts("NVIDIA H200", whole, 2**37, (9, 0))
    assert select(whole + " ", [gpu]) == select(whole + "0", [gpu]) == select(whole.upper(), [gpu]) == (gpu,)
    assert select(whole[:-1] + "e", [gpu]) == select(whole[:-1] + " ", [gpu]) == ()


def test_a_gpu_in_mig_mode_without_mig_devices_is_none_that_can_be_used() -> None:
    assert select(None, [UNSPLIT]) == select("0", [UNSPLIT]) == ()
    assert hides_all("0", [UNSPLIT]) == hides_all(None, [UNSPLIT]) == "MIG mode is on and no MIG device is made"
    assert select(None, [UNSPLIT, GPUS[0]]) == (GPUS[0],)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "CUDA_VISIBLE_DEVICES='' hides all of them"),
        ("-1", "CUDA_VISIBLE_DEVICES='-1' hides all of them: '-1' names no GPU here"),
        ("7,0", "CUDA_VISIBLE_DEVICES='7,0' hides all of them: '7' names no GPU here"),
        ("GPU-aa,0", "CUDA_VISIBLE_DEVICES='GPU-aa,0' hides all of them: 'GPU-aa' names no GPU here"),
        ("1,1", "CUDA_VISIBLE_DEVICES='1,1' hides all of them: it repeats an entry"),
        ("MIG-p10", "CUDA_VISIBLE_DEVICES='MIG-p10' hides all of them: 'MIG-p10' names no GPU here"),
    ],
)
def test_a_value_that_hides_all_is_told_with_the_entry_at_fault(value: str, why: str) -> None:
    assert hides_all(value, GPUS) == why


def test_a_gpu_that_nvml_cannot_read_is_counted_and_may_be_meant_by_any_uuid() -> None:
    gpus = [nvml.unknown(), nvml.unknown()]
    assert select("1,0", gpus) == (gpus[1], gpus[0])
    assert select("GPU-aa11", gpus[:1]) == (gpus[0],)
    assert hides_all("-1", gpus)


def driver_count(value: str | None) -> int:
    """Return how many devices CUDA's driver counts in a fresh process under this value."""
    program = (
        "import ctypes\n"
        "count, driver = ctypes.c_int(0), ctypes.CDLL('libcuda.so.1')\n"
        "said = driver.cuInit(0)\n"  # 100, no device, where all are hidden
        "driver.cuDeviceGetCount(ctypes.byref(count))\n"
        "print(0 if said else count.value)\n"
    )
    environ = {name: kept for name, kept in os.environ.items() if name != VARIABLE}
    if value is not None:
        environ[VARIABLE] = value
    # not forked: a process that has CUDA open hands on a driver that counts nothing
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, env=environ, check=True
    )
    return int(done.stdout)


VALUES = (
    *(
        None,
        "",
        " ",
        "0",
        " 0",
        "0 ",
        "+0",
        "00",
        "-0",
        "-1",
        "0,-1",
        "-1,0",
        "1",
        "0,1",
        "1,0",
        "0,0",
        "0,1,0",
        "0,-1,0",
    ),
    *("0x0", "0gpu", "0,,1", ",0", "0,", "NoDevFiles", "zero", "{u}", " {u}", "{u} ", "{u}0", "{short}", "{u},{short}"),
    *("{u},{u}", "{u},0", "0,{u}", "{u},GPU-zz", "GPU-zz,{u}", "GPU-", "{upper}", "{bare}", "gpu-{bare}", "GPU-zz"),
    *("MIG-{bare}", "MIG-{u}/1/0", "MIG-", "9999999999999999999999"),
)
"""``{u}``: the UUID of a GPU; ``{short}``: its first 8 characters."""


@pytest.mark.gpu
def test_the_driver_counts_what_the_rules_say(gpu: None) -> None:
    gpus = nvml.all_facts()
    uuid = gpus[0].uuid
    words = {"u": uuid, "short": uuid[:8], "upper": "GPU-" + uuid[4:].upper(), "bare": uuid[4:]}
    texts = [value if value is None else value.format(**words) for value in VALUES]
    counted = {text: (len(select(text, gpus)), driver_count(text)) for text in texts}
    wrong = {text: both for text, both in counted.items() if both[0] != both[1]}
    assert not wrong, f"(ours, the driver's): {wrong}"
