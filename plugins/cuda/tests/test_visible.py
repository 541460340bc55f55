"""opdock_cuda.visible: the rules of CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import pytest

from opdock_cuda.visible import hides_all, to_nvml

UUIDS = ("GPU-aa11", "GPU-aa22", "GPU-bb33", "GPU-cc44")


@pytest.mark.parametrize(
    ("device_id", "value", "expected"),
    [
        (0, None, 0),
        (3, None, 3),
        (4, None, None),
        (0, "2,0", 2),
        (1, "2,0", 0),
        (2, "2,0", None),
        (1, " 2 , 0 ", 0),
        (0, "GPU-bb", 2),
        (0, "GPU-aa", None),  # two match
        (0, "MIG-1234", None),
        (0, "", None),
        (1, "1,9,2", None),  # CUDA reads up to the first entry that names no GPU
        (1, "1,-1,2", None),
        (1, "1,1,2", None),
    ],
)
def test_the_gpu_behind_a_number_of_torch(device_id: int, value: str | None, expected: int | None) -> None:
    assert to_nvml(device_id, value, UUIDS) == expected


@pytest.mark.parametrize("value", ["", " ", "-1", "-1,0", "NoDevFiles", "4"])
def test_a_first_entry_that_names_no_gpu_hides_all(value: str) -> None:
    assert repr(value) in hides_all(value, 4)


@pytest.mark.parametrize("value", [None, "0", "3,-1", "GPU-aa11", "MIG-1234"])
def test_a_first_entry_that_names_a_gpu_hides_no_more_than_the_rest(value: str | None) -> None:
    assert hides_all(value, 4) == ""
