"""The kernels as torch ops, ``torch.ops.opdock_tpu.*``: what providers call, in eager and in compiled code.

On device ``jax`` torchax calls the kernel in place of the op, see ``lowering``. On CPU tensors the kernel is
interpreted, which shows its values and no more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from opdock_tpu import arrays, xla

_library = Library("opdock_tpu", "FRAGMENT")

SCHEMAS = {
    "rms_norm": "(Tensor x, Tensor? weight, float epsilon) -> Tensor",
    "fused_add_rms_norm": "(Tensor x, Tensor residual, Tensor? weight, float epsilon) -> (Tensor, Tensor)",
}


def rms_norm_arrays(x: Any, weight: Any, epsilon: float) -> Any:
    """Return ``rms_norm`` of arrays of jax; x of any number of dimensions from 1."""
    from opdock_tpu.kernels import norms

    rows = x.reshape(-1, x.shape[-1])
    return norms.rms_norm(rows, weight, epsilon, interpret=xla.interpreting()).reshape(x.shape)


def fused_add_rms_norm_arrays(x: Any, residual: Any, weight: Any, epsilon: float) -> tuple[Any, Any]:
    """Return ``fused_add_rms_norm`` of arrays of jax; x and residual of any number of dimensions from 1."""
    from opdock_tpu.kernels import norms

    rows, others = (a.reshape(-1, x.shape[-1]) for a in (x, residual))
    y, total = norms.fused_add_rms_norm(rows, others, weight, epsilon, interpret=xla.interpreting())
    return y.reshape(x.shape), total.reshape(x.shape)


def _rms_norm(x: Tensor, weight: Tensor | None, epsilon: float) -> Tensor:
    given = None if weight is None else arrays.of(weight)
    return arrays.like(rms_norm_arrays(arrays.of(x), given, epsilon), x)


def _fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor | None, epsilon: float) -> tuple[Tensor, Tensor]:
    given = None if weight is None else arrays.of(weight)
    y, total = fused_add_rms_norm_arrays(arrays.of(x), arrays.of(residual), given, epsilon)
    return arrays.like(y, x), arrays.like(total, x)


def _dense_like(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _one_like_x(x: Tensor, *_: Any) -> Tensor:
    return _dense_like(x)


def _two_like_x(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _dense_like(x), _dense_like(x)


_CPU: dict[str, Callable[..., Any]] = {"rms_norm": _rms_norm, "fused_add_rms_norm": _fused_add_rms_norm}
_FAKE: dict[str, Callable[..., Any]] = {"rms_norm": _one_like_x, "fused_add_rms_norm": _two_like_x}

for _name, _schema in SCHEMAS.items():
    _library.define(_name + _schema)
    _library.impl(_name, _CPU[_name], "CPU")
    torch.library.register_fake(f"opdock_tpu::{_name}", _FAKE[_name], lib=_library)
