"""Providers of IR ops. Importing this module registers them; the platform's ``import_ir_kernels`` does."""

from __future__ import annotations

import torch
from opdock import ir
from torch import Tensor


def takes(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> bool | str:
    """Return True, or the reason why not. It sees fake tensors too: no data and no addresses."""
    if x.dtype != torch.float32:
        return f"no kernel for {x.dtype}"
    if weight is not None and weight.dtype != x.dtype:
        return "weight and x differ in dtype"
    return variance_size is None or "no mean square over a part of the row"


@ir.ops.rms_norm.register_impl("demo_cpu", supports_args=takes)
def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    """Call the kernel: here PyTorch's own."""
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, epsilon)
