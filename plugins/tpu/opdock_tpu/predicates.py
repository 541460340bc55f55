"""Which arguments the kernels take: pure functions of metadata, each with the parameters of its IR op.

Each returns True, or the reason why not. Tensors are on device ``jax``; where XLA's CPU client stands in for a TPU, the
interpreter takes CPU tensors too.
"""

# ruff: noqa: ARG001 - the parameters are those of the IR ops
from __future__ import annotations

import torch
from torch import Tensor

from opdock_tpu import probe

Answer = bool | str

DEVICE = "jax"
DTYPES = frozenset((torch.bfloat16, torch.float32))

MAX_COLUMNS = 32768
"""Of a row: a block holds eight rows of float32, or sixteen of 16 bits, and a core's vector memory eight blocks. The
compiler refuses 49,152 for v5e and v5p."""

_PART = "no kernel for a mean square over a part of the row"


def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Answer:
    """Return whether the kernel takes the arguments of ``rms_norm``."""
    if variance_size is not None:
        return _PART
    return _refuse(x) or _refuse_weight(weight, x) or True


def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> Answer:
    """Return whether the kernel takes the arguments of ``fused_add_rms_norm``."""
    if variance_size is not None:
        return _PART
    if x_residual.shape != x.shape:
        return "x and x_residual differ in shape"
    if x_residual.dtype not in DTYPES:
        return f"no kernel for x_residual of {x_residual.dtype}: bfloat16 and float32"
    if x_residual.device.type != x.device.type:
        return f"x_residual is on {x_residual.device.type} and x on {x.device.type}"
    return _refuse(x) or _refuse_weight(weight, x) or True


def refuse_device(name: str, x: Tensor) -> str:
    """Return why the kernels do not run where a tensor is, "" where they do."""
    where = x.device.type
    if where == DEVICE or (where == "cpu" and probe.on_cpu()):
        return ""
    return f"{name} is on {where}, and the kernels run on {DEVICE}"


def _refuse(x: Tensor) -> str:
    if x.dtype not in DTYPES:
        return f"no kernel for {x.dtype}: bfloat16 and float32"
    if x.dim() == 0:
        return "x has no rows"
    if x.shape[-1] > MAX_COLUMNS:
        return f"rows of {x.shape[-1]} columns do not fit a core's vector memory: {MAX_COLUMNS} do"
    if x.numel() == 0:
        return "no elements: there is nothing to launch"
    return refuse_device("x", x)


def _refuse_weight(weight: Tensor | None, x: Tensor) -> str:
    if weight is None:
        return ""
    if weight.dtype not in DTYPES:
        return f"no kernel for a weight of {weight.dtype}: bfloat16 and float32"
    if weight.dim() != 1 or weight.shape[0] != x.shape[-1]:
        return f"a weight of shape {tuple(weight.shape)} does not fit rows of {x.shape[-1]}"
    if weight.device.type != x.device.type:
        return f"the weight is on {weight.device.type} and x on {x.device.type}"
    return ""
