"""The providers named ``triton``: opdock's Triton kernels, for every IR op that has one."""

# ruff: noqa: FBT001, FBT002 - providers have the parameters of the ops

# mypy: disable-error-code="untyped-decorator, no-any-return"
from __future__ import annotations

import functools

import torch
from torch import Tensor

from opdock import ir
from opdock.nn.kernels import triton
from opdock.nn.kernels.triton import takes
from opdock_rocm import probe

FP8 = torch.float8_e4m3fn


@functools.cache
def supported() -> bool | str:
    """Return whether Triton kernels run in this process, or why not; starts no driver."""
    reason = triton.why_not()
    if reason or triton.interpreted():
        return reason or True
    return probe.why_not() or True


@ir.ops.rms_norm.register_impl("triton", supported=supported, supports_args=takes.rms_norm, batch_invariant=True)
def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    """One row for each program."""
    return triton.rms_norm(x, weight, epsilon, variance_size)


@ir.ops.fused_add_rms_norm.register_impl(
    "triton", supported=supported, supports_args=takes.fused_add_rms_norm, inplace=True, batch_invariant=True
)
def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """One row for each program, in place."""
    return triton.fused_add_rms_norm(x, x_residual, weight, epsilon, variance_size)


@ir.ops.rms_norm_static_fp8_quant.register_impl(
    "triton", supported=supported, supports_args=takes.rms_norm_static_fp8_quant, batch_invariant=True
)
def rms_norm_static_fp8_quant(
    x: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: torch.dtype = FP8
) -> Tensor:
    """One row for each program."""
    return triton.rms_norm_static_fp8_quant(x, weight, scale, epsilon, dtype)


@ir.ops.rms_norm_dynamic_per_token_fp8_quant.register_impl(
    "triton", supported=supported, supports_args=takes.rms_norm_dynamic_per_token_fp8_quant, batch_invariant=True
)
def rms_norm_dynamic_per_token_fp8_quant(
    x: Tensor, weight: Tensor | None, epsilon: float, scale_ub: Tensor | None = None, dtype: torch.dtype = FP8
) -> tuple[Tensor, Tensor]:
    """One row for each program, read once."""
    return triton.rms_norm_dynamic_per_token_fp8_quant(x, weight, epsilon, scale_ub, dtype)


@ir.ops.fused_add_rms_norm_static_fp8_quant.register_impl(
    "triton", supported=supported, supports_args=takes.fused_add_rms_norm_static_fp8_quant, batch_invariant=True
)
def fused_add_rms_norm_static_fp8_quant(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: torch.dtype = FP8
) -> tuple[Tensor, Tensor]:
    """One row for each program."""
    return triton.fused_add_rms_norm_static_fp8_quant(x, x_residual, weight, scale, epsilon, dtype)


@ir.ops.fused_add_rms_norm_dynamic_per_token_fp8_quant.register_impl(
    "triton",
    supported=supported,
    supports_args=takes.fused_add_rms_norm_dynamic_per_token_fp8_quant,
    batch_invariant=True,
)
def fused_add_rms_norm_dynamic_per_token_fp8_quant(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    scale_ub: Tensor | None = None,
    dtype: torch.dtype = FP8,
) -> tuple[Tensor, Tensor, Tensor]:
    """One row for each program, read once."""
    return triton.fused_add_rms_norm_dynamic_per_token_fp8_quant(x, x_residual, weight, epsilon, scale_ub, dtype)


@ir.ops.silu_and_mul.register_impl(
    "triton", supported=supported, supports_args=takes.silu_and_mul, batch_invariant=True
)
def silu_and_mul(x: Tensor) -> Tensor:
    """Each element on its own."""
    return triton.silu_and_mul(x)


@ir.ops.gelu_and_mul.register_impl(
    "triton", supported=supported, supports_args=takes.gelu_and_mul, batch_invariant=True
)
def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    """Each element on its own."""
    return triton.gelu_and_mul(x, approximate)


@ir.ops.silu_and_mul_static_fp8_quant.register_impl(
    "triton", supported=supported, supports_args=takes.silu_and_mul_static_fp8_quant, batch_invariant=True
)
def silu_and_mul_static_fp8_quant(x: Tensor, scale: Tensor, dtype: torch.dtype = FP8) -> Tensor:
    """Each element on its own."""
    return triton.silu_and_mul_static_fp8_quant(x, scale, dtype)


@ir.ops.silu_and_mul_dynamic_per_token_fp8_quant.register_impl(
    "triton", supported=supported, supports_args=takes.silu_and_mul_dynamic_per_token_fp8_quant, batch_invariant=True
)
def silu_and_mul_dynamic_per_token_fp8_quant(
    x: Tensor, scale_ub: Tensor | None = None, dtype: torch.dtype = FP8
) -> tuple[Tensor, Tensor]:
    """One row for each program, read once."""
    return triton.silu_and_mul_dynamic_per_token_fp8_quant(x, scale_ub, dtype)


@ir.ops.static_scaled_fp8_quant.register_impl(
    "triton", supported=supported, supports_args=takes.static_scaled_fp8_quant, batch_invariant=True
)
def static_scaled_fp8_quant(x: Tensor, scale: Tensor, dtype: torch.dtype = FP8) -> Tensor:
    """Each element on its own."""
    return triton.static_scaled_fp8_quant(x, scale, dtype)


@ir.ops.dynamic_per_token_scaled_fp8_quant.register_impl(
    "triton", supported=supported, supports_args=takes.dynamic_per_token_scaled_fp8_quant, batch_invariant=True
)
def dynamic_per_token_scaled_fp8_quant(
    x: Tensor, scale_ub: Tensor | None = None, dtype: torch.dtype = FP8
) -> tuple[Tensor, Tensor]:
    """One row for each program, read once."""
    return triton.dynamic_per_token_scaled_fp8_quant(x, scale_ub, dtype)


@ir.ops.rotary_embedding.register_impl(
    "triton", supported=supported, supports_args=takes.rotary_embedding, inplace=True, batch_invariant=True
)
def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox: bool = True
) -> tuple[Tensor, Tensor]:
    """Some heads of one token for each program, in place."""
    return triton.rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox)
