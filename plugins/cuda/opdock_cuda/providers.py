"""The providers named ``cuda`` of the IR ops, each a call of one kernel.

The definitions say what is computed; ``predicates`` says which arguments a kernel takes. ``direct.run`` launches at
once where nobody has to see the call; whatever else comes, traced and fake tensors too, goes to torch's dispatcher.
"""

# ruff: noqa: D103, FBT001, FBT002 - signatures and documentation are those of the IR ops
# mypy: disable-error-code="untyped-decorator, no-any-return"
from __future__ import annotations

import torch
from torch import Tensor

from opdock import ir
from opdock_cuda import library, predicates, rotary_cache, tolerances
from opdock_cuda.direct import run
from opdock_cuda.platform import CudaPlatform

# A row's bits do not depend on the other rows: each element on its own, a maximum, which no order changes, and sums of
# squares, whose order goes by the row's length alone (csrc/launch.cuh, items_of).
ELEMENTWISE_INVARIANT = True
LARGEST_INVARIANT = True
NORM_INVARIANT = True

_ops = torch.ops.opdock_cuda
_dynamo = torch.compiler.is_dynamo_compiling


def supported() -> bool | str:
    """Return True where the kernels run on this process's first GPU, or why not."""
    return library.why_not() or library.why_not_on(CudaPlatform.get_device_capability()) or True


@ir.ops.rms_norm.register_impl(
    "cuda", supported=supported, supports_args=predicates.rms_norm, batch_invariant=NORM_INVARIANT
)
def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    if not _dynamo():
        made = run.rms_norm(x, weight, epsilon, variance_size)
        if made is not None:
            return made
    return _ops.rms_norm.default(x, weight, epsilon)


def _fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    if not _dynamo():
        made = run.fused_add_rms_norm_functional(x, x_residual, weight, epsilon, variance_size)
        if made is not None:
            return made
    return _ops.fused_add_rms_norm.default(x, x_residual, weight, epsilon)


@ir.ops.fused_add_rms_norm.register_impl(
    "cuda",
    supported=supported,
    supports_args=predicates.fused_add_rms_norm,
    inplace=True,
    functional=_fused_add_rms_norm,
    batch_invariant=NORM_INVARIANT,
)
def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    if not _dynamo():
        made = run.fused_add_rms_norm(x, x_residual, weight, epsilon, variance_size)
        if made is not None:
            return made
    _ops.fused_add_rms_norm_.default(x, x_residual, weight, epsilon)
    return x, x_residual


@ir.ops.rms_norm_static_fp8_quant.register_impl(
    "cuda", supported=supported, supports_args=predicates.rms_norm_static_fp8_quant, batch_invariant=NORM_INVARIANT
)
def rms_norm_static_fp8_quant(
    x: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: torch.dtype = torch.float8_e4m3fn
) -> Tensor:
    if not _dynamo():
        made = run.rms_norm_static_fp8_quant(x, weight, scale, epsilon, dtype)
        if made is not None:
            return made
    return _ops.rms_norm_static_fp8.default(x, weight, scale, epsilon)


@ir.ops.rms_norm_dynamic_per_token_fp8_quant.register_impl(
    "cuda",
    supported=supported,
    supports_args=predicates.rms_norm_dynamic_per_token_fp8_quant,
    batch_invariant=NORM_INVARIANT,
)
def rms_norm_dynamic_per_token_fp8_quant(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    scale_ub: Tensor | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor]:
    if not _dynamo():
        made = run.rms_norm_dynamic_per_token_fp8_quant(x, weight, epsilon, scale_ub, dtype)
        if made is not None:
            return made
    return _ops.rms_norm_token_fp8.default(x, weight, epsilon, scale_ub)


@ir.ops.fused_add_rms_norm_static_fp8_quant.register_impl(
    "cuda",
    supported=supported,
    supports_args=predicates.fused_add_rms_norm_static_fp8_quant,
    batch_invariant=NORM_INVARIANT,
)
def fused_add_rms_norm_static_fp8_quant(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    scale: Tensor,
    epsilon: float,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor]:
    if not _dynamo():
        made = run.fused_add_rms_norm_static_fp8_quant(x, x_residual, weight, scale, epsilon, dtype)
        if made is not None:
            return made
    return _ops.add_rms_norm_static_fp8.default(x, x_residual, weight, scale, epsilon)


@ir.ops.fused_add_rms_norm_dynamic_per_token_fp8_quant.register_impl(
    "cuda",
    supported=supported,
    supports_args=predicates.fused_add_rms_norm_dynamic_per_token_fp8_quant,
    batch_invariant=NORM_INVARIANT,
)
def fused_add_rms_norm_dynamic_per_token_fp8_quant(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    scale_ub: Tensor | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor, Tensor]:
    if not _dynamo():
        made = run.fused_add_rms_norm_dynamic_per_token_fp8_quant(x, x_residual, weight, epsilon, scale_ub, dtype)
        if made is not None:
            return made
    return _ops.add_rms_norm_token_fp8.default(x, x_residual, weight, epsilon, scale_ub)


@ir.ops.silu_and_mul.register_impl(
    "cuda", supported=supported, supports_args=predicates.silu_and_mul, batch_invariant=ELEMENTWISE_INVARIANT
)
def silu_and_mul(x: Tensor) -> Tensor:
    if not _dynamo():
        made = run.silu_and_mul(x)
        if made is not None:
            return made
    return _ops.silu_and_mul.default(x)


@ir.ops.gelu_and_mul.register_impl(
    "cuda", supported=supported, supports_args=predicates.gelu_and_mul, batch_invariant=ELEMENTWISE_INVARIANT
)
def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    if not _dynamo():
        made = run.gelu_and_mul(x, approximate)
        if made is not None:
            return made
    return _ops.gelu_and_mul.default(x, approximate == "tanh")


@ir.ops.silu_and_mul_static_fp8_quant.register_impl(
    "cuda",
    supported=supported,
    supports_args=predicates.silu_and_mul_static_fp8_quant,
    batch_invariant=ELEMENTWISE_INVARIANT,
)
def silu_and_mul_static_fp8_quant(x: Tensor, scale: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    if not _dynamo():
        made = run.silu_and_mul_static_fp8_quant(x, scale, dtype)
        if made is not None:
            return made
    return _ops.silu_and_mul_static_fp8.default(x, scale)


@ir.ops.silu_and_mul_dynamic_per_token_fp8_quant.register_impl(
    "cuda",
    supported=supported,
    supports_args=predicates.silu_and_mul_dynamic_per_token_fp8_quant,
    batch_invariant=LARGEST_INVARIANT,
)
def silu_and_mul_dynamic_per_token_fp8_quant(
    x: Tensor, scale_ub: Tensor | None = None, dtype: torch.dtype = torch.float8_e4m3fn
) -> tuple[Tensor, Tensor]:
    if not _dynamo():
        made = run.silu_and_mul_dynamic_per_token_fp8_quant(x, scale_ub, dtype)
        if made is not None:
            return made
    return _ops.silu_and_mul_token_fp8.default(x, scale_ub)


@ir.ops.static_scaled_fp8_quant.register_impl(
    "cuda",
    supported=supported,
    supports_args=predicates.static_scaled_fp8_quant,
    batch_invariant=ELEMENTWISE_INVARIANT,
)
def static_scaled_fp8_quant(x: Tensor, scale: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    if not _dynamo():
        made = run.static_scaled_fp8_quant(x, scale, dtype)
        if made is not None:
            return made
    return _ops.static_fp8.default(x, scale)


@ir.ops.dynamic_per_token_scaled_fp8_quant.register_impl(
    "cuda",
    supported=supported,
    supports_args=predicates.dynamic_per_token_scaled_fp8_quant,
    batch_invariant=LARGEST_INVARIANT,
)
def dynamic_per_token_scaled_fp8_quant(
    x: Tensor, scale_ub: Tensor | None = None, dtype: torch.dtype = torch.float8_e4m3fn
) -> tuple[Tensor, Tensor]:
    if not _dynamo():
        made = run.dynamic_per_token_scaled_fp8_quant(x, scale_ub, dtype)
        if made is not None:
            return made
    return _ops.token_fp8.default(x, scale_ub)


@ir.ops.rotary_embedding.register_impl(
    "cuda",
    supported=supported,
    supports_args=predicates.rotary_embedding,
    inplace=True,
    batch_invariant=ELEMENTWISE_INVARIANT,
)
def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox: bool = True
) -> tuple[Tensor, Tensor]:
    if not _dynamo():
        made = run.rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox)
        if made is not None:
            return made
    _ops.rotary_embedding_.default(positions, query, key, head_size, cos_sin_cache, is_neox)
    return query, key


rotary_cache.register(supported, batch_invariant=ELEMENTWISE_INVARIANT)
tolerances.register()
