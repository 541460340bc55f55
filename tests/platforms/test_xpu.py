"""Intel GPUs: a platform of ``PlatformEnum.XPU``, made here, and what is said where no plugin serves them.

There is no such device in the tests. torch without one still has its device type and its dispatch key, and can
make tensors of it that hold no numbers.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import opdock
from opdock import CustomOp, journal
from opdock.platforms import PlatformEnum, current
from opdock.registry import direct_register_custom_op

Install = Callable[..., str]

PLUGIN = """
from opdock.platforms.interface import Platform
from opdock.platforms.enums import PlatformEnum
class XpuPlatform(Platform):
    _enum = PlatformEnum.XPU
    device_name = "xpu"
    device_type = "xpu"
    dispatch_key = {key!r}
def register():
    return __name__ + ":XpuPlatform"
"""


class Twice(CustomOp):
    """Says by its result which method ran."""

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def forward_xpu(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(7)

    def forward_cuda(self, x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("forward_cuda is not for Intel GPUs")


class OnlyNative(CustomOp):
    """Has no method for Intel GPUs."""

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def test_an_entry_point_makes_the_platform_of_the_process_an_xpu_one(install: Install) -> None:
    install("intel", source=PLUGIN.format(key="XPU"))
    platform = current.resolve()
    assert platform._enum is PlatformEnum.XPU and platform.is_xpu()
    assert not (platform.is_out_of_tree() or platform.is_cuda_alike() or platform.is_cpu())
    assert torch.device(platform.device_type).type == "xpu"
    assert torch._C._dispatch_key_for_device(platform.device_type) == platform.dispatch_key == "XPU"
    assert platform.device_count() == torch.xpu.device_count()  # what the class lacks is looked up in torch.xpu


@pytest.mark.parametrize("key", ["CUDA", "CPU", "PrivateUse1"])
def test_another_dispatch_key_is_refused_with_the_right_one(key: str, install: Install) -> None:
    install("intel", source=PLUGIN.format(key=key))
    with pytest.raises(opdock.errors.PlatformFailedError, match=r"torch dispatches 'xpu' tensors to 'XPU'"):
        current.resolve()


@pytest.mark.usefixtures("taken_back")
def test_layers_bind_forward_xpu_and_without_one_native(install: Install) -> None:
    from torch._subclasses import FakeTensorMode

    install("intel", source=PLUGIN.format(key="XPU"))
    twice, only = CustomOp.register("xpu_twice")(Twice), CustomOp.register("xpu_only_native")(OnlyNative)
    with opdock.set_current_config(), FakeTensorMode():
        x = torch.empty(3, device=current.resolve().device_type)
        mine, native = twice()(x), only()(x)
    assert (mine.device.type, tuple(mine.shape)) == ("xpu", (7,))
    assert (native.device.type, tuple(native.shape)) == ("xpu", (3,))


@pytest.mark.usefixtures("taken_back")
def test_a_switched_off_layer_runs_native_there_too(install: Install) -> None:
    from torch._subclasses import FakeTensorMode

    install("intel", source=PLUGIN.format(key="XPU"))
    twice = CustomOp.register("xpu_twice")(Twice)
    config = opdock.OpdockConfig(compilation_config=opdock.CompilationConfig(custom_ops=["-xpu_twice"]))
    with opdock.set_current_config(config), FakeTensorMode():
        assert tuple(twice()(torch.empty(3, device="xpu")).shape) == (3,)


@pytest.mark.usefixtures("taken_back")
def test_ops_are_registered_for_the_key_of_xpu_tensors_and_for_no_other(install: Install) -> None:
    install("intel", source=PLUGIN.format(key="XPU"))

    def seven(x: torch.Tensor) -> torch.Tensor:
        return torch.full((1,), 7.0)

    current.resolve()
    with journal.transaction():
        direct_register_custom_op("xpu_seven", seven)
    held = torch._C._dispatch_has_kernel_for_dispatch_key
    assert held("opdock::xpu_seven", "XPU")
    assert not held("opdock::xpu_seven", "CPU") and not held("opdock::xpu_seven", "PrivateUse1")

    class Hollow(torch.Tensor):
        """A tensor of the device, without memory; torch asks for the method, and the guard below skips it."""

        @classmethod
        def __torch_dispatch__(cls, func: object, *_: object) -> None:
            raise AssertionError(f"{func} was not taken to the device")

    x = torch.Tensor._make_wrapper_subclass(Hollow, (3,), device="xpu")
    python = torch._C.DispatchKeySet(torch._C.DispatchKey.Python)
    with torch._C._ExcludeDispatchKeyGuard(python):
        assert torch.ops.opdock.xpu_seven(x).item() == 7.0  # torch's dispatcher took it there
    with pytest.raises(NotImplementedError, match=r"'opdock::xpu_seven'.*'CPU'"):
        torch.ops.opdock.xpu_seven(torch.ones(3))


def _built_for_xpu(folder: Path) -> Path:
    """Put metadata of a PyTorch for Intel GPUs before those of the installed one."""
    info = folder / "torch-2.13.0+xpu.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0+xpu\n", encoding="utf-8")
    return folder


SAID = "torch 2.13.0+xpu is built for Intel GPUs (torch.xpu), and no installed platform plugin runs on one here"


def test_a_torch_for_intel_gpus_without_a_plugin_is_the_cpu_and_a_warning_says_what_is_missing(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.syspath_prepend(str(_built_for_xpu(tmp_path / "built")))
    with caplog.at_level(logging.WARNING, "opdock"):
        assert current.resolve().device_name == "cpu"
    assert SAID in caplog.text
    caplog.clear()
    current.reset()
    install("intel", source=PLUGIN.format(key="XPU"))
    with caplog.at_level(logging.WARNING, "opdock"):
        assert current.resolve().device_name == "xpu"
    assert SAID not in caplog.text


def test_doctor_gives_the_hint_and_names_the_next_step(tmp_path: Path) -> None:
    keep = ("VLLM_TARGET_DEVICE", "OPDOCK_PLATFORM")
    environ = {k: v for k, v in os.environ.items() if k not in keep} | {"VLLM_PLUGINS": ""}
    environ["PYTHONPATH"] = os.pathsep.join([str(_built_for_xpu(tmp_path)), environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "opdock", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, cwd=tmp_path)
    told = json.loads(done.stdout)
    assert told["platform"] == "cpu"
    assert any(hint.startswith(SAID) for hint in told["hints"]), told["hints"]
    assert told["hints"][-1].endswith(": opdock new NAME")


@pytest.mark.usefixtures("install")
def test_asking_for_xpu_by_name_without_a_plugin_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPDOCK_PLATFORM", "xpu")
    with pytest.raises(opdock.errors.PlatformNotFoundError, match="no installed distribution has a platform plugin"):
        current.resolve()
