"""What every linear kernel is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from opdock import env
from opdock.nn.quantization.spec import LinearSpec

if TYPE_CHECKING:
    import torch
    from torch import nn


class LinearKernel(ABC):
    """One way to apply a quantised weight; an object is made for each layer.

    The layer's parameters are the same for every method before ``process_weights_after_loading``: for 8-bit weights
    ``weight`` (outputs, inputs), ``weight_scale`` float32 and, for a static scale, ``input_scale`` float32 ();
    for 4-bit ones ``weight_codes`` (outputs, inputs) uint8 from 0 to 15, ``weight_scale`` (groups, outputs), and
    where the spec says so ``weight_zero`` (groups, outputs) uint8 and ``input_order`` (inputs,) int64: column i of the
    codes belongs to element ``input_order[i]`` of x.
    """

    backend: ClassVar[str]
    """The name that a user forces it by."""

    batch_invariant: ClassVar[bool] = False
    """Whether a row's bits do not depend on the rows beside it, where ``invariant`` asks for that; not inherited."""

    def __init__(self, spec: LinearSpec) -> None:
        """Keep the facts of the layer, and whether a row's bits must not depend on the rows beside it."""
        self.spec = spec
        self.invariant = env.batch_invariant()

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str]:
        """Return whether it runs in this process on a device of that capability, such as 90, and why not."""
        return True, ""

    @classmethod
    @abstractmethod
    def can_implement(cls, spec: LinearSpec) -> tuple[bool, str]:
        """Return whether it computes such a layer, and why not; reads no data."""

    def process_weights_after_loading(self, layer: nn.Module) -> None:  # noqa: B027 - optional
        """Bring the layer's parameters into the order that the kernel reads."""

    @abstractmethod
    def apply_weights(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return y (rows, outputs) for x (rows, inputs)."""

    @abstractmethod
    def dequantize_weight(self, layer: nn.Module) -> torch.Tensor:
        """Return the weight as floats, (outputs, inputs), in the dtype of the activations."""
