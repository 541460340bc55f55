"""Rows of activations to 8-bit numbers, in the way that a layer's checkpoint was made for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opdock import ir
from opdock.nn.quantization.parameters import held
from opdock.nn.quantization.rounding import quantise_groups, quantise_int8, quantise_rows_int8
from opdock.nn.quantization.spec import LinearSpec

if TYPE_CHECKING:
    from torch import Tensor, nn


def quantise_input(spec: LinearSpec, layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x (rows, inputs) as 8-bit numbers, and their float32 scales: (rows, 1), (rows, groups), or (1,).

    Args:
        spec: the layer's facts.
        layer: holds ``input_scale`` where that is static.
        x: floats.
    """
    if spec.input_scale == "static":
        scale = held(layer, "input_scale")
        if spec.kind == "int8":
            return quantise_int8(x, scale), scale.view(1)
        return ir.ops.static_scaled_fp8_quant(x, scale), scale.view(1)
    if spec.input_scale == "group":
        return quantise_groups(x, spec.weight_dtype)
    if spec.kind == "int8":
        return quantise_rows_int8(x)
    return ir.ops.dynamic_per_token_scaled_fp8_quant(x)


def dense(x: Tensor) -> Tensor:
    """Return x, copied if its rows do not lie one after the other."""
    return x if x.is_contiguous() else x.contiguous()
