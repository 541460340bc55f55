"""opdock_cuda.nvml: what is made of the answers of the driver's library."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from opdock_cuda import nvml


class _NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class _Machine(ModuleType):
    """A stand-in for the driver's library: GPUs as dicts, a missing key is an error of NVML."""

    NVMLError = _NVMLError
    NVML_ERROR_LIBRARY_NOT_FOUND, NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_GPU_NOT_FOUND = 12, 9, 28

    def __init__(self, *gpus: dict[str, Any] | None) -> None:
        super().__init__("pynvml")
        self.gpus, self.open = gpus, 0

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        return self._known(self.gpus[index])

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: dict[str, Any]) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: dict[str, Any], index: int) -> dict[str, Any]:
        return self._known(gpu["parts"].get(index))

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvmlDeviceGet"):
            raise AttributeError(name)
        return lambda device: self._known(device.get(name.removeprefix("nvmlDeviceGet")))

    @staticmethod
    def _known(value: Any) -> Any:
        if value is None:
            raise _NVMLError(3)
        return value


def _device(name: str, uuid: str, memory: int | None, **more: Any) -> dict[str, Any]:
    found = {"Name": name, "UUID": uuid, "CudaComputeCapability": (9, 0), **more}
    return found if memory is None else found | {"MemoryInfo": type("Memory", (), {"total": memory})}


def _read(monkeypatch: pytest.MonkeyPatch, *gpus: dict[str, Any] | None) -> list[nvml.Facts]:
    machine = _Machine(*gpus)
    monkeypatch.setitem(sys.modules, "pynvml", machine)
    try:
        return nvml.all_facts()
    finally:
        assert machine.open == 0, "NVML is left open"


def test_the_facts_are_those_that_nvml_states_and_bytes_are_text(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = _device("NVIDIA H200", b"GPU-1", 2**37)  # type: ignore[arg-type]
    assert _read(monkeypatch, gpu) == [nvml.Facts("NVIDIA H200", "GPU-1", 2**37, (9, 0))]


def test_mig_devices_have_a_name_a_uuid_a_place_and_their_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {
        n: _device(f"H200 MIG {n}g", f"MIG-{n}", 2**34 * n, GpuInstanceId=n + 5, ComputeInstanceId=0) for n in (1, 3)
    }
    (found,) = _read(monkeypatch, _device("H200", "GPU-1", 2**37, MigMode=(1, 1), parts=parts))
    assert found.mig
    assert [(p.name, p.uuid, p.place, p.total_memory, p.capability) for p in found.instances] == [
        ("H200 MIG 1g", "MIG-1", "MIG-GPU-1/6/0", 2**34, (9, 0)),
        ("H200 MIG 3g", "MIG-3", "MIG-GPU-1/8/0", 3 * 2**34, (9, 0)),
    ]


def test_a_mig_mode_that_is_off_or_only_pending_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = _read(monkeypatch, _device("H200", "GPU-1", 2**37, MigMode=(0, 1), parts={}))
    assert not found.mig
    assert found.instances == ()


def test_a_gpu_that_shares_the_hosts_memory_has_no_size_in_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [facts.total_memory for facts in _read(monkeypatch, _device("GB10", "GPU-1", None))] == [0]


def test_a_gpu_that_does_not_answer_keeps_its_place_beside_one_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [facts.name for facts in _read(monkeypatch, None, _device("H200", "GPU-2", 1))] == ["", "H200"]


def test_where_no_gpu_answers_it_is_a_failure_in_nvmls_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(nvml.Failure, match="error 3") as caught:
        _read(monkeypatch, None, None)
    assert not caught.value.absent
