"""The providers named ``hip`` of the IR ops, each a call of one kernel.

The definitions say what is computed; ``predicates`` says which arguments a kernel takes.
"""

# ruff: noqa: ARG001, D103, FBT001, FBT002 - signatures and documentation are those of the IR ops
# mypy: disable-error-code="untyped-decorator, no-any-return"
from __future__ import annotations

import torch
from torch import Tensor

from opdock import ir
from opdock_rocm import library, predicates, probe
from opdock_rocm.platform import RocmPlatform
from opdock_rocm.priorities import HIP

_ops = torch.ops.opdock_rocm
_E4M3 = torch.float8_e4m3fn

# A row's bits do not depend on the other rows: sums of squares are taken in an order that goes by its length alone.
INVARIANT = True


def supported() -> bool | str:
    """Return True where the kernels run on this process's first GPU, or why not; starts no driver."""
    return library.why_not() or probe.why_not() or library.why_not_on(RocmPlatform.get_gfx()) or True


@ir.ops.rms_norm.register_impl(HIP, supported=supported, supports_args=predicates.rms_norm, batch_invariant=INVARIANT)
def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    return _ops.rms_norm.default(x, weight, epsilon)


def _fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    return _ops.fused_add_rms_norm.default(x, x_residual, weight, epsilon)


@ir.ops.fused_add_rms_norm.register_impl(
    HIP,
    supported=supported,
    supports_args=predicates.fused_add_rms_norm,
    inplace=True,
    functional=_fused_add_rms_norm,
    batch_invariant=INVARIANT,
)
def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    _ops.fused_add_rms_norm_.default(x, x_residual, weight, epsilon)
    return x, x_residual


@ir.ops.rms_norm_static_fp8_quant.register_impl(
    HIP, supported=supported, supports_args=predicates.rms_norm_static_fp8_quant, batch_invariant=INVARIANT
)
def rms_norm_static_fp8_quant(
    x: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: torch.dtype = _E4M3
) -> Tensor:
    return _ops.rms_norm_static_fp8.default(x, weight, scale, epsilon)


@ir.ops.rms_norm_dynamic_per_token_fp8_quant.register_impl(
    HIP, supported=supported, supports_args=predicates.rms_norm_dynamic_per_token_fp8_quant, batch_invariant=INVARIANT
)
def rms_norm_dynamic_per_token_fp8_quant(
    x: Tensor, weight: Tensor | None, epsilon: float, scale_ub: Tensor | None = None, dtype: torch.dtype = _E4M3
) -> tuple[Tensor, Tensor]:
    return _ops.rms_norm_token_fp8.default(x, weight, epsilon, scale_ub)


@ir.ops.fused_add_rms_norm_static_fp8_quant.register_impl(
    HIP, supported=supported, supports_args=predicates.fused_add_rms_norm_static_fp8_quant, batch_invariant=INVARIANT
)
def fused_add_rms_norm_static_fp8_quant(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: torch.dtype = _E4M3
) -> tuple[Tensor, Tensor]:
    return _ops.add_rms_norm_static_fp8.default(x, x_residual, weight, scale, epsilon)


@ir.ops.fused_add_rms_norm_dynamic_per_token_fp8_quant.register_impl(
    HIP,
    supported=supported,
    supports_args=predicates.fused_add_rms_norm_dynamic_per_token_fp8_quant,
    batch_invariant=INVARIANT,
)
def fused_add_rms_norm_dynamic_per_token_fp8_quant(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    scale_ub: Tensor | None = None,
    dtype: torch.dtype = _E4M3,
) -> tuple[Tensor, Tensor, Tensor]:
    return _ops.add_rms_norm_token_fp8.default(x, x_residual, weight, epsilon, scale_ub)


@ir.ops.silu_and_mul.register_impl(
    HIP, supported=supported, supports_args=predicates.silu_and_mul, batch_invariant=INVARIANT
)
def silu_and_mul(x: Tensor) -> Tensor:
    return _ops.silu_and_mul.default(x)


@ir.ops.gelu_and_mul.register_impl(
    HIP, supported=supported, supports_args=predicates.gelu_and_mul, batch_invariant=INVARIANT
)
def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    return _ops.gelu_and_mul.default(x, approximate == "tanh")


@ir.ops.silu_and_mul_static_fp8_quant.register_impl(
    HIP, supported=supported, supports_args=predicates.silu_and_mul_static_fp8_quant, batch_invariant=INVARIANT
)
def silu_and_mul_static_fp8_quant(x: Tensor, scale: Tensor, dtype: torch.dtype = _E4M3) -> Tensor:
    return _ops.silu_and_mul_static_fp8.default(x, scale)


@ir.ops.silu_and_mul_dynamic_per_token_fp8_quant.register_impl(
    HIP,
    supported=supported,
    supports_args=predicates.silu_and_mul_dynamic_per_token_fp8_quant,
    batch_invariant=INVARIANT,
)
def silu_and_mul_dynamic_per_token_fp8_quant(
    x: Tensor, scale_ub: Tensor | None = None, dtype: torch.dtype = _E4M3
) -> tuple[Tensor, Tensor]:
    return _ops.silu_and_mul_token_fp8.default(x, scale_ub)


@ir.ops.static_scaled_fp8_quant.register_impl(
    HIP, supported=supported, supports_args=predicates.static_scaled_fp8_quant, batch_invariant=INVARIANT
)
def static_scaled_fp8_quant(x: Tensor, scale: Tensor, dtype: torch.dtype = _E4M3) -> Tensor:
    return _ops.static_fp8.default(x, scale)


@ir.ops.dynamic_per_token_scaled_fp8_quant.register_impl(
    HIP, supported=supported, supports_args=predicates.dynamic_per_token_scaled_fp8_quant, batch_invariant=INVARIANT
)
def dynamic_per_token_scaled_fp8_quant(
    x: Tensor, scale_ub: Tensor | None = None, dtype: torch.dtype = _E4M3
) -> tuple[Tensor, Tensor]:
    return _ops.token_fp8.default(x, scale_ub)


@ir.ops.rotary_embedding.register_impl(
    HIP, supported=supported, supports_args=predicates.rotary_embedding, inplace=True, batch_invariant=INVARIANT
)
def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox: bool = True
) -> tuple[Tensor, Tensor]:
    _ops.rotary_embedding_.default(positions, query, key, head_size, cos_sin_cache, is_neox)
    return query, key
