"""4-bit weights, whatever tool packed them."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

from opdock.errors import CheckpointError, UnsupportedError
from opdock.nn.quantization import layouts
from opdock.nn.quantization.method import LinearMethodBase, wait_for_weights, weights_are_ready
from opdock.nn.quantization.parameters import Parts, add, is_fake, replace, require_filled
from opdock.nn.quantization.selection import kernel_of
from opdock.nn.quantization.spec import LinearSpec

Layout = Literal["gptq", "awq", "packed"]
_NAMES = {
    "gptq": ("qweight", "scales", "qzeros", "g_idx"),
    "awq": ("qweight", "scales", "qzeros", ""),
    "packed": ("weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx"),
}


class Int4LinearMethod(LinearMethodBase):
    """Codes from 0 to 15 with a scale, and perhaps a zero point, for each group of inputs.

    Args:
        layout: ``gptq``: words along the inputs, (inputs / 8, outputs); ``awq``: along the outputs, in AWQ's order,
            (inputs, outputs / 8); ``packed``: compressed-tensors', along the inputs, (outputs, inputs / 8).
        group_size: inputs that share a scale; -1: all.
        zero_points: whether zero points other than 8 occur.
        reordered: whether ``g_idx`` may name the groups in any order (act-order).
        stored_zeros: whether the checkpoint holds zero points even where all are 8.
        zeros_less_one: whether it holds them less one.
        holds_g_idx: whether it holds ``g_idx`` even where groups are in order.
        prefix: the layer's path in its model.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        group_size: int,
        zero_points: bool,
        reordered: bool = False,
        stored_zeros: bool | None = None,
        zeros_less_one: bool = False,
        holds_g_idx: bool = False,
        prefix: str = "",
    ) -> None:
        """Keep the facts; the kernel is chosen with the layer's sizes."""
        self.layout, self.group_size, self.zero_points = layout, group_size, zero_points
        self.reordered, self.zeros_less_one, self.prefix = reordered, zeros_less_one, prefix
        self.stored_zeros = zero_points if stored_zeros is None else stored_zeros
        self.holds_g_idx = holds_g_idx or reordered

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
        """Set the words, scales and what else the layout has; choose the kernel.

        Raises: UnsupportedError naming the layer if its sizes are no multiples of a word or group, or no kernel can
            serve it.
        """
        inputs, outputs = input_size_per_partition, sum(output_partition_sizes)
        group = inputs if self.group_size == -1 else self.group_size
        self._check_sizes(inputs, output_partition_sizes, group)
        self.spec = LinearSpec(
            "mp",
            inputs,
            outputs,
            params_dtype,
            torch.uint8,
            "none",
            "group",
            group,
            self.zero_points,
            self.reordered,
            prefix=self.prefix,
        )
        wait_for_weights(self, self.prefix)
        self.kernel = kernel_of(self, self.spec)
        groups = inputs // group
        words, scales, zeros, g_idx = _NAMES[self.layout]
        across = self.layout != "packed"  # outputs are the columns

        def parameter(name: str, shape: tuple[int, int], dtype: torch.dtype, per: int) -> None:
            stored = shape if across else shape[::-1]
            add(layer, name, stored, dtype, Parts(1 if across else 0, per), **extra_weight_attrs)

        if self.layout == "awq":
            parameter(words, (inputs, outputs // 8), torch.int32, 8)
        else:
            parameter(words, (inputs // 8, outputs), torch.int32, 1)
        parameter(scales, (groups, outputs), params_dtype, 1)
        if self.stored_zeros:
            parameter(zeros, (groups, outputs // 8), torch.int32, 8)
        if self.holds_g_idx:
            add(layer, g_idx, (len(output_partition_sizes), inputs), torch.int32, Parts(0, 0), **extra_weight_attrs)

    def _check_sizes(self, inputs: int, sizes: list[int], group: int) -> None:
        why = []
        if group < 1 or inputs % group:
            why.append(f"{inputs} inputs are no multiple of the group size {group}")
        if inputs % 8:
            why.append(f"{inputs} inputs are no multiple of 8, the codes in a word")
        if (self.layout == "awq" or self.stored_zeros) and any(size % 8 for size in sizes):
            why.append(f"outputs {', '.join(map(str, sizes))} are not all multiples of 8, the codes in a word")
        if why:
            raise UnsupportedError(
                f"The layer {self.prefix!r} cannot be quantised so.",
                who=f"layer {self.prefix}",
                why=why,
                remedy="use another group size, or list the layer among those that stay unquantised.",
            )

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Unpack the words into the one order that kernels take, and let the kernel repack them.

        Raises: CheckpointError naming the layer if scales were not loaded, or g_idx does not fit the group size.
        """
        words, scales, zeros, g_idx = _NAMES[self.layout]
        require_filled(layer, (scales,), f"the layer {self.prefix!r}")
        taken = {
            name: p.data for name in (words, scales, zeros, g_idx) if (p := layer._parameters.get(name)) is not None
        }
        for name in taken:
            replace(layer, name, None)
        codes = self._codes(taken[words])
        scale = taken[scales] if self.layout != "packed" else taken[scales].t().contiguous()
        if self.reordered:
            self._check_groups(taken[g_idx])
            order = layouts.sorted_by_group(taken[g_idx][0])
            codes = codes[:, order]
            replace(layer, "input_order", order)
        elif self.holds_g_idx:
            self._check_in_order(taken[g_idx])
        replace(layer, "weight_codes", codes)
        replace(layer, "weight_scale", scale)
        if self.stored_zeros:
            zero = self._zeros(taken[zeros])
            if self.zero_points:
                replace(layer, "weight_zero", zero)
            elif not is_fake(zero) and not bool((zero == 8).all()):
                raise CheckpointError(
                    f"The layer {self.prefix!r} has zero points, but the configuration says that it is symmetric.",
                    who=f"layer {self.prefix}",
                    why=f"they go from {int(zero.min())} to {int(zero.max())}; symmetric ones are 8",
                    remedy='set "sym": false in the quantisation configuration, or quantise the model again.',
                )
        self.kernel.process_weights_after_loading(layer)
        weights_are_ready(self)

    def _codes(self, words: torch.Tensor) -> torch.Tensor:
        if self.layout == "gptq":
            return layouts.unpack_gptq(words)
        if self.layout == "awq":
            return layouts.unpack_awq(words).t().contiguous()
        return layouts.unpack(words, 1)

    def _zeros(self, words: torch.Tensor) -> torch.Tensor:
        if self.layout == "gptq":
            return layouts.unpack_gptq_zeros(words, less_one=self.zeros_less_one)
        if self.layout == "awq":
            return layouts.unpack_awq(words)
        return layouts.unpack(words, 0).t().contiguous()

    def _check_in_order(self, g_idx: torch.Tensor) -> None:
        in_order = torch.arange(self.spec.inputs, device=g_idx.device) // self.spec.group_size
        if not is_fake(g_idx) and not bool((g_idx == in_order).all()):
            raise CheckpointError(
                f"The layer {self.prefix!r} has its inputs in another order than the configuration says.",
                who=f"layer {self.prefix}",
                why=[
                    f"g_idx begins with {g_idx[0, :8].tolist()}",
                    f"without act-order each {self.spec.group_size} inputs that follow one another are a group",
                ],
                remedy='set "desc_act": true in the quantisation configuration, or quantise the model again.',
            )

    def _check_groups(self, g_idx: torch.Tensor) -> None:
        if is_fake(g_idx):
            return
        if not bool((g_idx == g_idx[0]).all()):
            raise CheckpointError(
                f"The parts of the fused layer {self.prefix!r} have their inputs in different orders.",
                who=f"layer {self.prefix}",
                why="their g_idx differ, and the layer sorts its inputs once",
                remedy="quantise the model again without act-order (desc_act).",
            )
        groups = self.spec.inputs // self.spec.group_size
        g_idx = g_idx[0]
        inside = bool(((g_idx >= 0) & (g_idx < groups)).all())
        counts = torch.bincount(g_idx.long().clamp(0), minlength=groups) if inside else None
        if counts is None or not bool((counts == self.spec.group_size).all()):
            raise CheckpointError(
                f"The groups of the layer {self.prefix!r} do not all have {self.spec.group_size} inputs.",
                who=f"layer {self.prefix}",
                why=f"g_idx goes from {int(g_idx.min())} to {int(g_idx.max())} over {self.spec.inputs} inputs",
                remedy="download the checkpoint again, or quantise the model again.",
            )

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return x @ weight.T + bias."""
        if x.dim() == 2:
            return self.kernel.apply_weights(layer, x, bias)
        y = self.kernel.apply_weights(layer, x.reshape(-1, x.shape[-1]), bias)
        return y.view(*x.shape[:-1], y.shape[-1])

    def dequantize_weight(self, layer: nn.Module) -> torch.Tensor:
        """Return the weight as floats of the activations' dtype, its columns in the order of x."""
        return self.kernel.dequantize_weight(layer)
