"""What the HIP kernels return, without running them: for FakeTensorMode and compiled code.

Importing this needs the kernels: ``library.why_not`` does it. Results are dense, whatever the strides of x.
"""

# ruff: noqa: ARG005, TC002 - the parameters are those of the schemas
# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.library import register_fake

from opdock_rocm.platform import RocmPlatform


def _like(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


def _half(x: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


def _fp8(x: Tensor) -> Tensor:
    return x.new_empty(x.shape, dtype=RocmPlatform.fp8_dtype())


def _scales(x: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], 1), dtype=x.new_empty(0).float().dtype)


def _in_place(*_: Any) -> None:
    """Return nothing: the op writes its arguments alone."""


FAKES: dict[str, Callable[..., Any]] = {
    "rms_norm": lambda x, weight, epsilon: _like(x),
    "fused_add_rms_norm_": _in_place,
    "fused_add_rms_norm": lambda x, x_residual, weight, epsilon: (_like(x), _like(x)),
    "rms_norm_static_fp8": lambda x, weight, scale, epsilon: _fp8(x),
    "rms_norm_token_fp8": lambda x, weight, epsilon, scale_ub: (_fp8(x), _scales(x)),
    "add_rms_norm_static_fp8": lambda x, x_residual, weight, scale, epsilon: (_fp8(x), _like(x)),
    "add_rms_norm_token_fp8": lambda x, x_residual, weight, epsilon, scale_ub: (_fp8(x), _scales(x), _like(x)),
    "silu_and_mul": _half,
    "gelu_and_mul": lambda x, tanh: _half(x),
    "silu_and_mul_static_fp8": lambda x, scale: _fp8(_half(x)),
    "silu_and_mul_token_fp8": lambda x, scale_ub: (_fp8(_half(x)), _scales(x)),
    "static_fp8": lambda x, scale: _fp8(x),
    "token_fp8": lambda x, scale_ub: (_fp8(x), _scales(x)),
    "rotary_embedding_": _in_place,
    "reshape_and_cache_": _in_place,
}

for _name, _fake in FAKES.items():
    register_fake(f"opdock_rocm::{_name}", _fake)
