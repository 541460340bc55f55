"""int8 rows times int8 weights with torch's own product, which sums in int32."""

from __future__ import annotations

import torch
from torch import nn

from opdock.nn.quantization.kernels.native import NativeScaledLinear
from opdock.nn.quantization.kernels.rows import quantise_input
from opdock.nn.quantization.parameters import held
from opdock.nn.quantization.spec import LinearSpec

LEAST_ROWS = 17
"""Rows that CUDA's product needs; fewer are padded."""


class IntMatmulLinear(NativeScaledLinear):
    """``torch._int_mm``, then both scales."""

    backend = "torch"
    batch_invariant = True  # sums of integers are exact, and each is scaled by itself

    @classmethod
    def can_implement(cls, spec: LinearSpec) -> tuple[bool, str]:
        """Return yes for int8 weights of sizes that are multiples of 8."""
        if spec.kind != "int8":
            return False, f"{spec.kind} weights"
        if spec.inputs % 8 or spec.outputs % 8:
            return False, f"{spec.inputs} x {spec.outputs}: not multiples of 8"
        return True, ""

    def apply_weights(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return y; the sums are exact."""
        q, scale = quantise_input(self.spec, layer, x)
        rows = q.shape[0]
        if q.is_cuda and rows < LEAST_ROWS:
            q = torch.nn.functional.pad(q, (0, 0, 0, LEAST_ROWS - rows))
        sums = torch._int_mm(q, held(layer, "weight").t())[:rows]
        y = sums.to(torch.float32) * scale * held(layer, "weight_scale")
        return (y if bias is None else y + bias.float()).to(x.dtype)
