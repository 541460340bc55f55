"""opdock_rocm.smi, kfd and wsl: what each source says, read."""

from __future__ import annotations

from pathlib import Path

import pytest

from opdock_rocm import child, kfd, smi, wsl
from opdock_rocm.gpus import Facts

MI300X = Facts("AMD Instinct MI300X", "GPU-8c2f1d5b7e9a0344", 196592 << 20, "gfx942", 304)
ASIC = {
    "market_name": "AMD Instinct MI300X",
    "vendor_id": 4098,
    "asic_serial": "0x8C2F1D5B7E9A0344",
    "num_compute_units": 304,
    "target_graphics_version": "gfx942",
}


def _module(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """Put a module of amdsmi's name on the path of child processes."""
    (folder / "amdsmi.py").write_text(source, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_amdsmis_answer_is_read() -> None:
    assert smi.read({"gpus": [[ASIC, {"vram_type": "HBM3", "vram_size": 196592}]]}) == (MI300X,)


def test_what_amdsmi_does_not_know_is_left_open() -> None:
    asic = {"market_name": "AMD Radeon", "asic_serial": "N/A", "num_compute_units": "N/A", "target_graphics_version": 0}
    assert smi.read({"gpus": [[asic, {}], [{}, {}]]}) == (Facts("AMD Radeon"), Facts())


def test_without_amdsmi_that_is_said() -> None:
    with pytest.raises(smi.Failure) as caught:
        smi.all_facts()
    assert caught.value.missing
    assert caught.value.text == "the module 'amdsmi' is not installed"


def test_an_amdsmi_without_its_library_or_driver_is_told_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _module(tmp_path, monkeypatch, "raise KeyError('ROCM_PATH')\n")
    with pytest.raises(smi.Failure, match="KeyError: 'ROCM_PATH'") as caught:
        smi.all_facts()
    assert not caught.value.missing
    raises = (
        "class AmdSmiInitFlags: INIT_AMD_GPUS = 2\ndef amdsmi_init(flag): raise RuntimeError('Error code:\\n\\t34')\n"
    )
    _module(tmp_path, monkeypatch, raises)
    with pytest.raises(smi.Failure, match="Error code: 34"):
        smi.all_facts()


def test_an_amdsmi_that_hangs_ends_in_bounded_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _module(tmp_path, monkeypatch, "import time\ntime.sleep(60)\n")
    with pytest.raises(child.Broken, match="no answer within"):
        smi.all_facts(timeout=1.0)


def _node(folder: Path, number: int, text: str, memory: int = 0) -> None:
    node = folder / str(number)
    (node / "mem_banks" / "0").mkdir(parents=True)
    (node / "properties").write_text(text, encoding="utf-8")
    (node / "mem_banks" / "0" / "properties").write_text(f"heap_type 1\nsize_in_bytes {memory}\n", encoding="utf-8")


def test_the_kernels_driver_lists_gpus_in_hips_order_and_leaves_out_cpus_and_what_is_not_this_processs(
    tmp_path: Path,
) -> None:
    _node(tmp_path, 0, "cpu_cores_count 96\nsimd_count 0\ngfx_target_version 0\n")
    gpu = "cpu_cores_count 0\nsimd_count 1216\nsimd_per_cu 4\ngfx_target_version 90402\nunique_id "
    _node(tmp_path, 10, gpu + "2\n", 1 << 37)
    _node(tmp_path, 2, gpu + "1\n", 1 << 37)
    (tmp_path / "3").mkdir()  # another container's
    assert kfd.all_facts(tmp_path) == (
        Facts("", "GPU-0000000000000001", 1 << 37, "gfx942", 304),
        Facts("", "GPU-0000000000000002", 1 << 37, "gfx942", 304),
    )
    assert kfd.all_facts(tmp_path / "none") == ()


def test_a_driver_that_is_not_there_or_not_for_this_user_is_told(tmp_path: Path) -> None:
    device = tmp_path / "kfd"
    assert kfd.why_not(device) == f"no AMD GPU: its driver is not loaded, there is no {device}"
    device.touch()
    assert kfd.why_not(device, lambda *_: True) == ""
    refused = kfd.why_not(device, lambda *_: False)
    assert refused == f"an AMD GPU is here, and {device} may not be opened: the user is not in the group render"


def test_wsl_is_its_kernel_and_a_gpu_driver() -> None:
    assert wsl.is_wsl("5.15.167.4-microsoft-standard-WSL2", lambda path: path == "/dev/dxg")
    assert not wsl.is_wsl("5.15.167.4-microsoft-standard-WSL2", lambda _: False)
    assert not wsl.is_wsl("6.1.0-39-amd64", lambda _: True)


def test_under_wsl_a_runtime_that_is_not_there_is_told_in_the_loaders_words() -> None:
    reason, found = wsl.read(wsl.ask(["/no-such-folder/libamdhip64.so"]))
    assert "/no-such-folder/libamdhip64.so: cannot open shared object file" in reason
    assert found == ()
    assert wsl.paths("torch/lib")[0] == "torch/lib/libamdhip64.so"


def test_under_wsl_the_runtimes_devices_are_read() -> None:
    assert wsl.read({"gpus": [["AMD Radeon PRO W7900", 48 << 30]]}) == (
        "",
        (Facts("AMD Radeon PRO W7900", "", 48 << 30),),
    )
    assert wsl.read({"gpus": []}) == ("", ())
