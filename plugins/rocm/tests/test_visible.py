"""opdock_rocm.visible: three variables, reconciled."""

from __future__ import annotations

import pytest

from opdock.errors import PlatformError
from opdock_rocm.gpus import Facts
from opdock_rocm.visible import hides_all, select

GPUS = tuple(Facts(str(i), f"GPU-000000000000000{i}") for i in range(4))


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, "0123"),
        ({"HIP_VISIBLE_DEVICES": "2,0"}, "20"),
        ({"CUDA_VISIBLE_DEVICES": "3"}, "3"),
        ({"HIP_VISIBLE_DEVICES": "1,2", "CUDA_VISIBLE_DEVICES": "1, 2"}, "12"),
        ({"ROCR_VISIBLE_DEVICES": "2,3"}, "23"),
        ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"}, "3"),
        ({"ROCR_VISIBLE_DEVICES": "GPU-0000000000000003,GPU-0000000000000001"}, "31"),
        ({"HIP_VISIBLE_DEVICES": "GPU-0000000000000002"}, "2"),
        ({"HIP_VISIBLE_DEVICES": "0,9,1"}, "0"),  # the list ends at what names no GPU
        ({"HIP_VISIBLE_DEVICES": "1,1"}, ""),
        ({"HIP_VISIBLE_DEVICES": ""}, ""),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, ""),
    ],
)
def test_the_variables_say_which_gpus_hip_counts(environ: dict[str, str], expected: str) -> None:
    assert "".join(facts.name for facts in select(environ, GPUS)) == expected


def test_hips_and_cudas_variables_that_differ_are_an_error_that_names_both() -> None:
    with pytest.raises(PlatformError) as caught:
        select({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, GPUS)
    assert "HIP_VISIBLE_DEVICES='0' and CUDA_VISIBLE_DEVICES='1' contradict one another" in str(caught.value)
    assert "unset CUDA_VISIBLE_DEVICES" in str(caught.value)


@pytest.mark.parametrize("name", ["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"])
def test_numbers_that_were_meant_for_all_gpus_under_rocrs_variable_are_an_error_that_names_both(name: str) -> None:
    with pytest.raises(PlatformError) as caught:
        select({"ROCR_VISIBLE_DEVICES": "2,3", name: "2,3"}, GPUS)
    text = str(caught.value)
    assert f"ROCR_VISIBLE_DEVICES='2,3' and {name}='2,3' together hide every GPU" in text
    assert f"set {name}=0,1" in text


def test_what_hides_all_is_named() -> None:
    assert hides_all({}, GPUS) == ""
    assert hides_all({"HIP_VISIBLE_DEVICES": "1"}, GPUS) == ""
    assert hides_all({"HIP_VISIBLE_DEVICES": ""}, GPUS) == "HIP_VISIBLE_DEVICES='' hides all of them"
    assert hides_all({"CUDA_VISIBLE_DEVICES": "9"}, GPUS) == "CUDA_VISIBLE_DEVICES='9' hides all of them"
    both = {"ROCR_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "0"}
    assert hides_all(both, GPUS) == "ROCR_VISIBLE_DEVICES='' hides all of them"
    assert hides_all({"HIP_VISIBLE_DEVICES": ""}, ()) == ""
