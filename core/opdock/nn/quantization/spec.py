"""What a kernel is told of a linear layer: facts only, so that the choice is a pure function."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

KernelType = Literal["fp8", "fp8_block", "int8", "mp"]
KERNEL_TYPES: tuple[KernelType, ...] = ("fp8", "fp8_block", "int8", "mp")
"""``fp8`` and ``int8``: 8-bit weights and activations; ``fp8_block``: with scales of 128 x 128 blocks of the weight
and of 128 elements of a row; ``mp``: 4-bit weights, activations as they are."""


@dataclass(frozen=True)
class LinearSpec:
    """A quantised linear layer.

    Args:
        kind: which list of kernels it takes.
        inputs: length of a row of x.
        outputs: length of a row of y.
        act_dtype: of x and y.
        weight_dtype: of the stored weight; ``torch.uint8`` stands for 4-bit codes.
        input_scale: ``none``: x is not quantised; ``static``: one scale, from the checkpoint; ``token``: one for each
            row, computed; ``group``: one for each 128 elements of a row, computed.
        weight_scale: ``tensor``: one in all; ``channel``: one for each output; ``block``: one for each 128 x 128
            weights; ``group``: one for each output and ``group_size`` inputs.
        group_size: inputs that share a scale, for ``group``.
        zero_points: whether groups have zero points of their own; otherwise that of every group is 8.
        reordered: whether the inputs are sorted by group first (act-order).
        prefix: the layer's path in its model, for messages.
    """

    kind: KernelType
    inputs: int
    outputs: int
    act_dtype: torch.dtype
    weight_dtype: torch.dtype
    input_scale: Literal["none", "static", "token", "group"] = "none"
    weight_scale: Literal["tensor", "channel", "block", "group"] = "channel"
    group_size: int = 0
    zero_points: bool = False
    reordered: bool = False
    prefix: str = field(default="", compare=False)

    def describe(self) -> str:
        """Return one line for reports."""
        group = f" of {self.group_size}" if self.weight_scale == "group" else ""
        extras = [name for name in ("zero_points", "reordered") if getattr(self, name)]
        parts = [self.kind, f"{self.inputs} x {self.outputs}", f"weight scale per {self.weight_scale}{group}"]
        return ", ".join([*parts, f"input scale {self.input_scale}", *(e.replace("_", " ") for e in extras)])
