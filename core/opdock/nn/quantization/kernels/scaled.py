"""8-bit products on GPUs: torch's own, and the Triton kernel for few rows."""

from __future__ import annotations

import torch
from torch import nn

from opdock import context
from opdock.nn.kernels import triton as kernels
from opdock.nn.quantization.kernels.native import NativeScaledLinear
from opdock.nn.quantization.kernels.rows import dense, quantise_input
from opdock.nn.quantization.parameters import held
from opdock.nn.quantization.spec import LinearSpec

FP8_CAPABILITY = 89
"""The first compute capability of NVIDIA whose tensor cores multiply fp8."""


class TorchScaledLinear(NativeScaledLinear):
    """``torch._scaled_mm`` with fp8 rows and weights."""

    backend = "torch"

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str]:
        """Return yes from NVIDIA's capability 8.9 on, and on AMD's GPUs that multiply float8_e4m3fn."""
        found = context.platform()
        if found.is_rocm():  # its capabilities count otherwise: 9.4 is gfx942
            if found.is_fp8_fnuz():
                return False, "float8_e4m3fn is not the fp8 of these GPUs"
            return (True, "") if found.supports_fp8() else (False, "these GPUs do not multiply fp8")
        return _fp8_products(compute_capability)

    @classmethod
    def can_implement(cls, spec: LinearSpec) -> tuple[bool, str]:
        """Return yes for fp8 weights without blocks, of sizes that are multiples of 16."""
        if spec.kind != "fp8":
            return False, f"{spec.kind} weights"
        if spec.inputs % 16 or spec.outputs % 16:
            return False, f"{spec.inputs} x {spec.outputs}: not multiples of 16"
        if spec.act_dtype not in (torch.bfloat16, torch.float16):
            return False, f"{spec.act_dtype} results"
        return True, ""

    def apply_weights(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return y."""
        q, scale = quantise_input(self.spec, layer, x)
        weight_scale = held(layer, "weight_scale")
        if scale.numel() == 1 and weight_scale.numel() == 1:  # a one in both places is what the fast product takes
            scale, weight_scale = scale.view(()), weight_scale.view(())
        else:
            scale = scale.view(-1, 1).expand(q.shape[0], 1).contiguous()
            weight_scale = weight_scale.view(1, -1).expand(1, self.spec.outputs).contiguous()
        return torch._scaled_mm(
            q, held(layer, "weight").t(), scale_a=scale, scale_b=weight_scale, bias=bias, out_dtype=x.dtype
        )


class TritonScaledLinear(NativeScaledLinear):
    """The Triton kernel, and for many rows torch's product where that is faster."""

    backend = "triton"
    batch_invariant = True

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str]:
        """Return yes where Triton is usable and the device has a capability."""
        why = kernels.why_not()
        if why:
            return False, why
        if compute_capability is None and not kernels.interpreted():
            return False, "no compute capability"
        return True, ""

    @classmethod
    def can_implement(cls, spec: LinearSpec) -> tuple[bool, str]:
        """Return yes for 8-bit weights; for fp8 on devices that multiply float8_e4m3fn."""
        if spec.kind == "mp":
            return False, "4-bit weights"
        if spec.act_dtype not in (torch.bfloat16, torch.float16):
            return False, f"{spec.act_dtype} results"
        if spec.inputs % 16:
            return False, f"{spec.inputs} inputs: no multiple of 16"
        if spec.kind != "int8" and not kernels.interpreted():
            if context.platform().is_rocm():
                return False, "float8_e4m3fn is not the fp8 of these GPUs"
            found = context.platform().get_device_capability()
            return _fp8_products(None if found is None else found.to_int())
        return True, ""

    def apply_weights(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return y."""
        q, scale = quantise_input(self.spec, layer, x)
        weight, weight_scale = held(layer, "weight"), held(layer, "weight_scale")
        return kernels.scaled_linear(dense(q), weight, scale, weight_scale, bias, x.dtype, invariant=self.invariant)


def _fp8_products(capability: int | None) -> tuple[bool, str]:
    if capability is None:
        return False, "no compute capability"
    if capability < FP8_CAPABILITY:
        return False, f"capability {capability} is below {FP8_CAPABILITY}, the first that multiplies fp8"
    return True, ""
