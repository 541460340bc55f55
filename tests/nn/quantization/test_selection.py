"""The kernel of a quantised layer: chosen from a list, with a verdict for each."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

import opdock
from opdock import context
from opdock.errors import ConfigError, RegistrationError, UnsupportedError
from opdock.nn.layers import ReplicatedLinear
from opdock.nn.quantization import (
    LinearKernel,
    LinearSpec,
    choose_linear_kernel,
    explain_linear_kernel,
    finish_loading,
    get_quantization_config,
    linear_backend,
    register_linear_kernel,
)
from opdock.nn.quantization.selection import judge, possible_kernels
from opdock.platforms.enums import PlatformEnum

pytestmark = pytest.mark.usefixtures("taken_back", "config")

FP8 = LinearSpec("fp8", 256, 128, torch.bfloat16, torch.float8_e4m3fn, "token", "channel", prefix="model.up")
INT4 = LinearSpec("mp", 256, 128, torch.bfloat16, torch.uint8, "none", "group", 128, prefix="model.up")


class Vendor(LinearKernel):
    """A kernel of a third party for layers with at least 128 outputs on capability 90."""

    backend = "vendor"

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str]:
        return (True, "") if compute_capability is None or compute_capability >= 90 else (False, "needs 90")

    @classmethod
    def can_implement(cls, spec: LinearSpec) -> tuple[bool, str]:
        return (True, "") if spec.outputs >= 128 else (False, f"{spec.outputs} outputs are too few")

    def apply_weights(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return x.new_full((x.shape[0], self.spec.outputs), 7.0)

    def dequantize_weight(self, layer: nn.Module) -> torch.Tensor:
        return layer.weight  # type: ignore[return-value]


def test_the_first_kernel_that_can_is_chosen_and_each_before_it_says_why_not() -> None:
    """Capability, shape, switch and force give different reasons."""
    kernels: list[Any] = [Vendor, *possible_kernels(PlatformEnum.CPU, "fp8")]
    chosen, verdicts = judge(FP8, kernels, capability=None)
    assert chosen is Vendor
    assert [(v.kernel, v.chosen, v.reason) for v in verdicts] == [("Vendor", True, "")]
    for spec, facts, reason in (
        (FP8, {"capability": 80}, "needs 90"),
        (dataclasses.replace(FP8, outputs=64), {"capability": 90}, "64 outputs are too few"),
        (FP8, {"capability": 90, "disabled": ["Vendor"]}, "disabled by VLLM_DISABLED_KERNELS"),
        (FP8, {"capability": 90, "forced": "native"}, "'native' was asked for"),
    ):
        chosen, verdicts = judge(spec, kernels, **facts)  # type: ignore[arg-type]
        assert chosen is not None
        assert chosen.__name__ == "NativeScaledLinear"
        assert (verdicts[0].kernel, verdicts[0].reason) == ("Vendor", reason)


def test_nothing_fits_gives_none_and_all_reasons() -> None:
    """Never a kernel that said no."""
    chosen, verdicts = judge(FP8, [Vendor], capability=75)
    assert chosen is None
    assert [v.reason for v in verdicts] == ["needs 90"]


@pytest.mark.parametrize(("spec", "name"), [(FP8, "NativeScaledLinear"), (INT4, "NativeInt4Linear")])
def test_the_cpu_turns_weights_into_floats(spec: LinearSpec, name: str) -> None:
    """Where no product of its own numbers is faster."""
    with linear_backend("native"):
        assert choose_linear_kernel(spec).__name__ == name


@pytest.mark.parametrize("platform", list(PlatformEnum))
@pytest.mark.parametrize("kind", ["fp8", "fp8_block", "int8", "mp"])
def test_every_platform_ends_its_list_with_the_native_kernel(platform: PlatformEnum, kind: str) -> None:
    """Out-of-tree ones too, so that a new device runs every checkpoint from the first day."""
    assert possible_kernels(platform, kind)[-1].backend == "native"


def test_a_kernel_is_registered_for_an_out_of_tree_platform() -> None:
    """Before the native one, or first; the same again changes nothing."""
    before = possible_kernels(PlatformEnum.OOT, "fp8")
    register_linear_kernel(Vendor, PlatformEnum.OOT, "fp8")
    register_linear_kernel(Vendor, PlatformEnum.OOT, "fp8")
    assert possible_kernels(PlatformEnum.OOT, "fp8") == [Vendor, *before]
    assert possible_kernels(PlatformEnum.OOT, "mp")[-1].__name__ == "NativeInt4Linear"


def test_a_layer_is_built_with_a_registered_kernel() -> None:
    """On this platform, first in its list."""
    register_linear_kernel(Vendor, context.platform()._enum, "fp8", first=True)
    config = get_quantization_config("fp8").from_config({})
    layer = ReplicatedLinear(16, 128, quant_config=config, prefix="up", return_bias=False)
    for parameter in layer.parameters():
        torch.nn.init.zeros_(parameter)
    finish_loading(layer)
    assert layer(torch.zeros(2, 16)).eq(7).all()
    small = ReplicatedLinear(16, 64, quant_config=config, prefix="up", return_bias=False)
    assert small.quant_method.kernel.backend == "native"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("kernel", "kind", "message"),
    [
        (Vendor, "fp9", "Unrecognized kernel type: fp9[\\s\\S]*Did you mean 'fp8'"),
        (object, "fp8", "no LinearKernel"),
        (LinearKernel, "fp8", "lacks apply_weights"),
    ],
)
def test_a_registration_that_cannot_work_is_refused(kernel: Any, kind: str, message: str) -> None:
    """At once."""
    with pytest.raises(RegistrationError, match=message) as caught:
        register_linear_kernel(kernel, PlatformEnum.OOT, kind)
    assert caught.value.who
    assert caught.value.why
    assert caught.value.remedy


def test_a_platform_that_is_none_is_refused() -> None:
    """No platform would ever try the kernel."""
    with pytest.raises(RegistrationError, match=r"'cpu' is no PlatformEnum[\s\S]*Vendor[\s\S]*PlatformEnum.CPU"):
        register_linear_kernel(Vendor, "cpu", "fp8")  # type: ignore[arg-type]


def test_a_forced_backend_that_does_not_exist_gives_near_matches() -> None:
    """And the layer's name."""
    with linear_backend("nativ"), pytest.raises(ConfigError, match=r"nativ[\s\S]*model.up[\s\S]*'native'"):
        choose_linear_kernel(FP8)


def test_a_forced_backend_that_cannot_serve_a_layer_is_an_error_with_every_reason() -> None:
    """Never another kernel without a word."""
    register_linear_kernel(Vendor, context.platform()._enum, "fp8")
    few = dataclasses.replace(FP8, outputs=64)
    with (
        linear_backend("vendor"),
        pytest.raises(UnsupportedError, match=r"'model.up'[\s\S]*Vendor: 64 outputs are too few[\s\S]*native|Native"),
    ):
        choose_linear_kernel(few)


def test_kernels_are_switched_off_by_the_environment_with_blanks_around_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read when a layer is built, not at import."""
    register_linear_kernel(Vendor, context.platform()._enum, "fp8", first=True)
    assert choose_linear_kernel(FP8) is Vendor
    monkeypatch.setenv("VLLM_DISABLED_KERNELS", "Other, Vendor ")
    chosen, verdicts = explain_linear_kernel(FP8)
    assert chosen is not Vendor
    assert verdicts[0].reason == "disabled by VLLM_DISABLED_KERNELS"


def test_the_force_ends_with_its_block() -> None:
    """Also after an error."""
    with pytest.raises(ConfigError), linear_backend("nothing"):
        choose_linear_kernel(FP8)
    assert choose_linear_kernel(FP8).backend in ("native", "torch")
    with opdock.set_current_config():
        assert choose_linear_kernel(INT4).backend == "native"


def test_a_switch_that_switches_nothing_off_is_told_once_with_the_nearest_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("VLLM_DISABLED_KERNELS", "IntMatmulLinear, NativInt4Linear")
    with caplog.at_level("WARNING", logger="opdock"):
        for _ in range(2):
            choose_linear_kernel(INT4)
    assert len(caplog.messages) == 1
    assert "names NativInt4Linear" in caplog.text
    assert "Did you mean 'NativeInt4Linear'" in caplog.text


@pytest.mark.parametrize("question", ["is_supported", "can_implement"])
def test_a_kernel_that_answers_without_a_reason_is_told_with_the_layer(
    question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Yes alone is the mistake that authors make."""
    monkeypatch.setattr(Vendor, question, classmethod(lambda *_: True))
    with pytest.raises(RegistrationError, match=rf"Vendor.{question}[\s\S]*'model.up'[\s\S]*returned True"):
        judge(FP8, [Vendor], capability=90)
