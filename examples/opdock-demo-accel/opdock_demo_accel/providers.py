"""Providers of IR ops. Importing this module registers them; the platform's ``import_ir_kernels`` does.

A predicate returns True, or the reason why not, which ``opdock explain`` shows. It sees fake tensors too: they
have shapes, strides and dtypes, but no data and no addresses.
"""

from __future__ import annotations

import torch
from opdock import ir
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _takes(x: Tensor, weight: Tensor | None, variance_size: int | None) -> bool | str:
    if x.device.type != "demo_accel":
        return f"x is on {x.device.type}"
    if x.dtype not in DTYPES:
        return f"no kernel for {x.dtype}"
    if weight is not None and weight.dtype != x.dtype:
        return "weight and x differ in dtype"
    return variance_size is None or "no mean square over a part of the row"


def takes_norm(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool | str:
    """Return whether the kernel takes these arguments: any strides do."""
    return _takes(x, weight, variance_size)


# batch_invariant: each row is summed by itself, in one order.
@ir.ops.rms_norm.register_impl("demo_accel", supports_args=takes_norm, batch_invariant=True)
def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    """Call the kernel."""
    return torch.ops.demo_accel.rms_norm(x, weight, epsilon)


def takes_add_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool | str:
    """Return whether the kernel takes these arguments: it writes into both activations."""
    if x_residual.dtype != x.dtype:
        return "x_residual and x differ in dtype"
    if x is x_residual:
        return "x and x_residual are one tensor, which cannot hold two results"
    if not (x.is_contiguous() and x_residual.is_contiguous()):
        return "x or x_residual is not contiguous"
    return _takes(x, weight, variance_size)


# inplace: the results are written into the activations; the host clones those that are needed afterwards.
@ir.ops.fused_add_rms_norm.register_impl(
    "demo_accel", supports_args=takes_add_norm, inplace=True, batch_invariant=True
)
def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Call the kernel."""
    torch.ops.demo_accel.fused_add_rms_norm(x, x_residual, weight, epsilon)
    return x, x_residual
