"""8-bit weights and activations, whatever tool made them."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

from opdock.errors import UnsupportedError
from opdock.nn.quantization.method import LinearMethodBase, wait_for_weights, weights_are_ready
from opdock.nn.quantization.parameters import Parts, add, held, replace, require_filled
from opdock.nn.quantization.rounding import BLOCK, quantise_weight
from opdock.nn.quantization.selection import kernel_of
from opdock.nn.quantization.spec import KernelType, LinearSpec


class ScaledLinearMethod(LinearMethodBase):
    """fp8 or int8 weights with float32 scales.

    Args:
        dtype: of the weight, float8_e4m3fn or int8.
        per: what has a scale of its own: ``tensor`` (each part of a fused layer), ``channel`` or ``block``.
        static: whether the checkpoint holds the scale of the activations; otherwise each row, or with blocks each
            128 elements of it, gets one when it runs.
        scale_name: of the weight's scale in checkpoints.
        column: whether the checkpoint's channel scales are (outputs, 1), not (outputs,).
        online: the checkpoint holds a weight of the activations' dtype, which is quantised after loading.
        prefix: the layer's path in its model.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        *,
        per: Literal["tensor", "channel", "block"],
        static: bool,
        scale_name: str = "weight_scale",
        column: bool = True,
        online: bool = False,
        prefix: str = "",
    ) -> None:
        """Keep the facts; the kernel is chosen with the layer's sizes."""
        self.dtype, self.per, self.static, self.scale_name = dtype, per, static, scale_name
        self.column, self.online, self.prefix = column, online, prefix

    def create_weights(
        self,
        layer: nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Set ``weight``, its scale, and for a static one ``input_scale``; choose the kernel.

        Raises: UnsupportedError naming the layer if a part of a fused one ends inside a block, or no kernel can serve
            it.
        """
        outputs, parts = sum(output_partition_sizes), len(output_partition_sizes)
        self._check_blocks(output_partition_sizes)
        self.spec = self._spec(input_size_per_partition, outputs, parts, params_dtype)
        wait_for_weights(self, self.prefix)
        self.kernel = kernel_of(self, self.spec)
        shape = (outputs, input_size_per_partition)
        add(layer, "weight", shape, params_dtype if self.online else self.dtype, Parts(0), **extra_weight_attrs)
        if self.online:
            return
        if self.per == "tensor":
            add(layer, self.scale_name, (parts,), torch.float32, Parts(0, 0), **extra_weight_attrs)
        elif self.per == "channel":
            scale = (outputs, 1) if self.column else (outputs,)
            add(layer, self.scale_name, scale, torch.float32, Parts(0), **extra_weight_attrs)
        else:
            scale = (-(-outputs // BLOCK), -(-input_size_per_partition // BLOCK))
            add(layer, self.scale_name, scale, torch.float32, Parts(0, BLOCK), **extra_weight_attrs)
        if self.static:
            add(layer, "input_scale", (parts,), torch.float32, Parts(0, 0), **extra_weight_attrs)

    def _check_blocks(self, sizes: list[int]) -> None:
        if self.per == "block" and not self.online and any(size % BLOCK for size in sizes[:-1]):
            raise UnsupportedError(
                f"The layer {self.prefix!r} cannot be quantised in blocks.",
                who=f"layer {self.prefix}",
                why=f"its parts of {', '.join(map(str, sizes))} outputs do not all end with a block of {BLOCK}",
                remedy="list the layer among those that stay unquantised, and quantise the model again.",
            )

    def _spec(self, inputs: int, outputs: int, parts: int, act_dtype: torch.dtype) -> LinearSpec:
        kind: KernelType = "int8" if self.dtype == torch.int8 else "fp8_block" if self.per == "block" else "fp8"
        per = "channel" if self.per == "tensor" and parts > 1 and not self.online else self.per
        dynamic: Literal["group", "token"] = "group" if self.per == "block" else "token"
        return LinearSpec(
            kind,
            inputs,
            outputs,
            act_dtype,
            self.dtype,
            "static" if self.static else dynamic,
            per,
            prefix=self.prefix,
        )

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Bring the scales into the order of the kernels; quantise a weight that came as floats.

        Raises: CheckpointError naming the layer if scales were not loaded, or are none.
        """
        names = ("weight", self.scale_name, "input_scale")
        require_filled(layer, names, f"the layer {self.prefix!r}", positive=names[2:])
        if self.online:
            data, scale = quantise_weight(held(layer, "weight").data, self.dtype, self.per)
            replace(layer, "weight", data)
        else:
            scale = self._loaded_scale(layer)
            if self.scale_name != "weight_scale":
                replace(layer, self.scale_name, None)
        replace(layer, "weight_scale", scale)
        if self.static:  # the parts of a fused layer have one input, and the largest scale holds all of it
            replace(layer, "input_scale", held(layer, "input_scale").data.max())
        self.kernel.process_weights_after_loading(layer)
        weights_are_ready(self)

    def _loaded_scale(self, layer: nn.Module) -> torch.Tensor:
        scale = held(layer, self.scale_name).data
        if self.per == "channel":
            return scale.reshape(-1)
        if self.per == "tensor" and scale.numel() > 1:
            sizes = torch.tensor(layer.output_partition_sizes, device=scale.device)
            return scale.repeat_interleave(sizes, output_size=self.spec.outputs)
        return scale

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return x @ weight.T + bias."""
        if x.dim() == 2:
            return self.kernel.apply_weights(layer, x, bias)
        y = self.kernel.apply_weights(layer, x.reshape(-1, x.shape[-1]), bias)
        return y.view(*x.shape[:-1], y.shape[-1])

    def dequantize_weight(self, layer: nn.Module) -> torch.Tensor:
        """Return the weight as floats of the activations' dtype."""
        return self.kernel.dequantize_weight(layer)
