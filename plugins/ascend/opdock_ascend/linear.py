"""The linear kernel ``ascend``: int8 weights times rows that are quantised as they come, for opdock's quantisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from opdock.nn.quantization.kernels.base import LinearKernel
from opdock.nn.quantization.parameters import held, replace
from opdock.nn.quantization.spec import LinearSpec
from opdock_ascend import library, limits, ops, probe
from opdock_ascend.predicates import HALVES

if TYPE_CHECKING:
    import torch
    from torch import nn


class AscendInt8Linear(LinearKernel):
    """``npu_dynamic_quant``, then ``npu_quant_matmul`` with both scales and the bias."""

    backend: ClassVar[str] = "ascend"

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str]:
        """Return whether torch_npu is loaded and an NPU is there, and why not."""
        reason = library.why_not() or probe.why_not()
        return not reason, reason

    @classmethod
    def can_implement(cls, spec: LinearSpec) -> tuple[bool, str]:
        """Return yes for int8 weights, rows with scales of their own, and activations in 16 bits."""
        if spec.kind != "int8":
            return False, f"{spec.kind} weights"
        if spec.input_scale != "token":
            return False, f"{spec.input_scale} scales of the input: npu_dynamic_quant gives each row its own"
        if spec.act_dtype not in HALVES:
            return False, f"activations of {spec.act_dtype}: npu_dynamic_quant takes float16 and bfloat16"
        if max(spec.inputs, spec.outputs) > limits.WIDEST_MATMUL:
            return False, f"{spec.inputs} x {spec.outputs}: the operator takes rows of up to {limits.WIDEST_MATMUL}"
        return True, ""

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Turn the weight, which the operator reads as (inputs, outputs), and give each output its scale."""
        replace(layer, "weight", held(layer, "weight").data.t().contiguous())
        scale = held(layer, "weight_scale").data.float().reshape(-1)
        replace(layer, "weight_scale", scale.expand(self.spec.outputs).contiguous())

    def apply_weights(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return y."""
        if not x.shape[0]:
            return x.new_empty(0, self.spec.outputs)
        weight, scale = held(layer, "weight"), held(layer, "weight_scale")
        return ops.int8_linear(x.contiguous(), weight, scale, None if bias is None else bias.float())

    def dequantize_weight(self, layer: nn.Module) -> torch.Tensor:
        """Return the weight as floats, (outputs, inputs)."""
        floats = held(layer, "weight").float() * held(layer, "weight_scale")
        return floats.t().contiguous().to(self.spec.act_dtype)
