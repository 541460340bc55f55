"""Products of plain torch, on any device: the weight is turned into floats at each call."""

from __future__ import annotations

import torch
from torch import nn

from opdock.nn.quantization.kernels.base import LinearKernel
from opdock.nn.quantization.kernels.rows import quantise_input
from opdock.nn.quantization.layouts import pack_bytes, unpack_bytes
from opdock.nn.quantization.parameters import held, held_or_none, replace
from opdock.nn.quantization.rounding import spread_blocks
from opdock.nn.quantization.spec import LinearSpec


class NativeScaledLinear(LinearKernel):
    """8-bit rows and weights, multiplied in float32 (int8: float64, which is exact)."""

    backend = "native"

    @classmethod
    def can_implement(cls, spec: LinearSpec) -> tuple[bool, str]:
        """Return yes for 8-bit weights."""
        return (True, "") if spec.kind != "mp" else (False, "4-bit weights")

    def apply_weights(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return y, from numbers that x is rounded to as on a device that multiplies 8-bit numbers."""
        wide = torch.float64 if self.spec.kind == "int8" or x.dtype == torch.float64 else torch.float32
        q, scale = quantise_input(self.spec, layer, x)
        if self.spec.kind == "fp8_block":
            q = q.to(wide) * scale.to(wide).repeat_interleave(128, 1)[:, : q.shape[1]]
            y = q @ self._floats(layer, wide).t()
        else:
            y = (
                (q.to(wide) @ held(layer, "weight").to(wide).t())
                * scale.to(wide)
                * held(layer, "weight_scale").to(wide)
            )
        return (y if bias is None else y + bias.to(wide)).to(x.dtype)

    def _floats(self, layer: nn.Module, dtype: torch.dtype) -> torch.Tensor:
        weight, scale = held(layer, "weight"), held(layer, "weight_scale")
        if self.spec.weight_scale == "block":
            spread = spread_blocks(scale, weight.shape[0], weight.shape[1])
        else:
            spread = scale.view(-1, 1)
        return weight.to(dtype) * spread.to(dtype)

    def dequantize_weight(self, layer: nn.Module) -> torch.Tensor:
        """Return the weight as floats."""
        return self._floats(layer, torch.float32).to(self.spec.act_dtype)


class NativeInt4Linear(LinearKernel):
    """4-bit weights, turned into floats of the activations' dtype; two codes in a byte while they wait."""

    backend = "native"

    @classmethod
    def can_implement(cls, spec: LinearSpec) -> tuple[bool, str]:
        """Return yes for 4-bit weights with an even number of inputs."""
        if spec.kind != "mp":
            return False, "8-bit weights"
        return (True, "") if spec.inputs % 2 == 0 else (False, f"{spec.inputs} inputs is an odd number")

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Put two codes into a byte."""
        replace(layer, "weight_codes", pack_bytes(held(layer, "weight_codes").data))

    def apply_weights(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return y."""
        order = held_or_none(layer, "input_order")
        return torch.nn.functional.linear(x if order is None else x[:, order], self._floats(layer, x.dtype), bias)

    def _floats(self, layer: nn.Module, dtype: torch.dtype) -> torch.Tensor:
        codes = unpack_bytes(held(layer, "weight_codes")).to(dtype)
        group = self.spec.group_size
        zero = held_or_none(layer, "weight_zero")
        if zero is None:
            codes -= 8
        else:
            codes -= zero.t().to(dtype).repeat_interleave(group, 1)
        return codes.mul_(held(layer, "weight_scale").t().to(dtype).repeat_interleave(group, 1))

    def dequantize_weight(self, layer: nn.Module) -> torch.Tensor:
        """Return the weight as floats, its columns in the order of x."""
        floats = self._floats(layer, self.spec.act_dtype)
        order = held_or_none(layer, "input_order")
        if order is None:
            return floats
        back = torch.empty_like(floats)
        back[:, order] = floats
        return back
