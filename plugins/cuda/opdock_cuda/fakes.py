"""What the kernels return, without running them: for FakeTensorMode and compiled code.

``library.load`` calls ``register`` once the kernels are there. Results are dense, whatever the strides of x.
"""

# ruff: noqa: ARG001, FBT001 - the parameters are those of the schemas
# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.library import register_fake

_FP8 = torch.float8_e4m3fn


def _like(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return x.new_empty(x.shape, dtype=dtype or x.dtype)


def _half(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2), dtype=dtype or x.dtype)


def _scales(x: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)


def _rms_norm(x: Tensor, weight: Tensor | None, epsilon: float) -> Tensor:
    return _like(x)


def _fused_add_rms_norm(x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float) -> tuple[Tensor, Tensor]:
    return _like(x), _like(x)


def _rms_norm_static_fp8(x: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float) -> Tensor:
    return _like(x, _FP8)


def _rms_norm_token_fp8(
    x: Tensor, weight: Tensor | None, epsilon: float, scale_ub: Tensor | None
) -> tuple[Tensor, Tensor]:
    return _like(x, _FP8), _scales(x)


def _add_rms_norm_static_fp8(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    return _like(x, _FP8), _like(x)


def _add_rms_norm_token_fp8(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, scale_ub: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    return _like(x, _FP8), _scales(x), _like(x)


def _silu_and_mul(x: Tensor) -> Tensor:
    return _half(x)


def _gelu_and_mul(x: Tensor, tanh: bool) -> Tensor:
    return _half(x)


def _silu_and_mul_static_fp8(x: Tensor, scale: Tensor) -> Tensor:
    return _half(x, _FP8)


def _silu_and_mul_token_fp8(x: Tensor, scale_ub: Tensor | None) -> tuple[Tensor, Tensor]:
    return _half(x, _FP8), _scales(x)


def _static_fp8(x: Tensor, scale: Tensor) -> Tensor:
    return _like(x, _FP8)


def _token_fp8(x: Tensor, scale_ub: Tensor | None) -> tuple[Tensor, Tensor]:
    return _like(x, _FP8), _scales(x)


def _in_place(*_: Any) -> None:
    """Return nothing: the op writes its arguments alone."""


FAKES: dict[str, Callable[..., Any]] = {
    "rms_norm": _rms_norm,
    "fused_add_rms_norm_": _in_place,
    "fused_add_rms_norm": _fused_add_rms_norm,
    "rms_norm_static_fp8": _rms_norm_static_fp8,
    "rms_norm_token_fp8": _rms_norm_token_fp8,
    "add_rms_norm_static_fp8": _add_rms_norm_static_fp8,
    "add_rms_norm_token_fp8": _add_rms_norm_token_fp8,
    "silu_and_mul": _silu_and_mul,
    "gelu_and_mul": _gelu_and_mul,
    "silu_and_mul_static_fp8": _silu_and_mul_static_fp8,
    "silu_and_mul_token_fp8": _silu_and_mul_token_fp8,
    "static_fp8": _static_fp8,
    "token_fp8": _token_fp8,
    "rotary_embedding_": _in_place,
    "reshape_and_cache_": _in_place,
    "rotary_and_cache_": _in_place,
}


def missing() -> list[str]:
    """Return which of the ops the loaded kernels do not have: an older build has not all."""
    return [name for name in FAKES if not hasattr(torch.ops.opdock_cuda, name)]


def register() -> None:
    """Register every fake; once in a process, for torch refuses a second one of an op."""
    for name, fake in FAKES.items():
        register_fake(f"opdock_cuda::{name}", fake)
