"""Rows times a weight, where no row's bits may depend on the number of rows or on the row's place among them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import Library

from opdock.nn.invariant import refuse
from opdock.nn.kernels import triton as kernels
from opdock.nn.layers.matmul import product

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""What the Triton product multiplies."""

_library = Library("opdock", "FRAGMENT")


def invariant_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias, each row with the bits that it has alone.

    On the CPU every row is a product of its own: of one shape, from memory that begins where the allocator begins it.
    On GPUs one Triton kernel serves any number of rows: its tiles and the order of its sums are fixed.

    Shapes: x (..., inputs); weight (outputs, inputs); bias (outputs,) or None; returns (..., outputs).
    Dtypes: all the same; on GPUs float32 (summed in float32, no TF32), bfloat16, float16.

    Raises: BatchInvarianceError where there is no such product.
    """
    if torch._C._len_torch_dispatch_stack():  # one op for whoever looks at ops
        found: Tensor = torch.ops.opdock.invariant_linear(x, weight, bias)
        return found
    return _invariant_linear(x, weight, bias)


def why_not(device_type: str, dtype: torch.dtype) -> str:
    """Return why there is no such product on a type of device in a dtype; "" if there is."""
    if device_type == "cpu":
        return ""
    if device_type != "cuda":
        return f"there is no product of fixed order for {device_type} tensors"
    if dtype not in DTYPES:
        return f"the product of fixed order takes no {str(dtype).removeprefix('torch.')}"
    reason = kernels.why_not()
    return f"the product of fixed order is a Triton kernel: {reason}" if reason else ""


def _invariant_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    reason = why_not(x.device.type, x.dtype)
    if reason:
        raise refuse(f"op linear, x {tuple(x.shape)} and weight {tuple(weight.shape)}", reason)
    rows = x.reshape(-1, x.shape[-1])
    if x.is_cpu:
        out = torch.empty(rows.shape[0], weight.shape[0], dtype=x.dtype)
        for i in range(rows.shape[0]):
            out[i : i + 1] = product(rows[i : i + 1].clone(memory_format=torch.contiguous_format), weight, bias)
    else:
        from opdock.nn.kernels.triton.gemm_invariant import linear

        out = linear(rows, weight, bias)
    return out.view(*x.shape[:-1], weight.shape[0])


def _define() -> None:
    _library.define("invariant_linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
    _library.impl("invariant_linear", _invariant_linear, "CompositeExplicitAutograd")
    _library._register_fake("invariant_linear", lambda x, weight, _: x.new_empty(*x.shape[:-1], weight.shape[0]))


_define()
