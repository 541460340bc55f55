"""The kernels as providers of IR ops, for platforms whose devices Triton compiles for.

A package registers them as ``triton``, with its own answer to whether its device is usable::

    from opdock.nn.kernels.triton import providers

    for name, fn, facts in providers.all_ops(why_not):
        ir.registry[name].register_impl("triton", **facts)(fn)

The loop is the package's, so that what it registers is its own, and goes when its activation fails.
"""

# ruff: noqa: FBT001, FBT002 - providers have the parameters of the ops

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from opdock.nn.kernels import triton
from opdock.nn.kernels.triton import takes

FP8 = torch.float8_e4m3fn


def all_ops(why_not: Callable[[], str | None]) -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    """Yield the name of each op that has a kernel, its provider, and what to register that with.

    Args:
        why_not: returns why there is no usable device, None or "" where there is one; starts no driver. It is asked
            once, and not at all where there is no Triton, or where its interpreter serves.
    """

    @functools.cache
    def supported() -> bool | str:
        """Return whether Triton kernels run in this process, or why not."""
        reason = triton.why_not()
        if reason or triton.interpreted():
            return reason or True
        return why_not() or True

    for fn in PROVIDERS:
        name = fn.__name__
        facts = {"supported": supported, "supports_args": getattr(takes, name), "batch_invariant": True}
        yield name, fn, facts | {"inplace": fn in IN_PLACE}


def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    """One row for each program."""
    return triton.rms_norm(x, weight, epsilon, variance_size)


def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """One row for each program, in place."""
    return triton.fused_add_rms_norm(x, x_residual, weight, epsilon, variance_size)


def rms_norm_static_fp8_quant(
    x: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: torch.dtype = FP8
) -> Tensor:
    """One row for each program."""
    return triton.rms_norm_static_fp8_quant(x, weight, scale, epsilon, dtype)


def rms_norm_dynamic_per_token_fp8_quant(
    x: Tensor, weight: Tensor | None, epsilon: float, scale_ub: Tensor | None = None, dtype: torch.dtype = FP8
) -> tuple[Tensor, Tensor]:
    """One row for each program, read once."""
    return triton.rms_norm_dynamic_per_token_fp8_quant(x, weight, epsilon, scale_ub, dtype)


def fused_add_rms_norm_static_fp8_quant(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: torch.dtype = FP8
) -> tuple[Tensor, Tensor]:
    """One row for each program."""
    return triton.fused_add_rms_norm_static_fp8_quant(x, x_residual, weight, scale, epsilon, dtype)


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


def silu_and_mul(x: Tensor) -> Tensor:
    """Each element on its own."""
    return triton.silu_and_mul(x)


def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    """Each element on its own."""
    return triton.gelu_and_mul(x, approximate)


def silu_and_mul_static_fp8_quant(x: Tensor, scale: Tensor, dtype: torch.dtype = FP8) -> Tensor:
    """Each element on its own."""
    return triton.silu_and_mul_static_fp8_quant(x, scale, dtype)


def silu_and_mul_dynamic_per_token_fp8_quant(
    x: Tensor, scale_ub: Tensor | None = None, dtype: torch.dtype = FP8
) -> tuple[Tensor, Tensor]:
    """One row for each program, read once."""
    return triton.silu_and_mul_dynamic_per_token_fp8_quant(x, scale_ub, dtype)


def static_scaled_fp8_quant(x: Tensor, scale: Tensor, dtype: torch.dtype = FP8) -> Tensor:
    """Each element on its own."""
    return triton.static_scaled_fp8_quant(x, scale, dtype)


def dynamic_per_token_scaled_fp8_quant(
    x: Tensor, scale_ub: Tensor | None = None, dtype: torch.dtype = FP8
) -> tuple[Tensor, Tensor]:
    """One row for each program, read once."""
    return triton.dynamic_per_token_scaled_fp8_quant(x, scale_ub, dtype)


def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox: bool = True
) -> tuple[Tensor, Tensor]:
    """Some heads of one token for each program, in place."""
    return triton.rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox)


PROVIDERS: tuple[Callable[..., Any], ...] = (
    rms_norm,
    fused_add_rms_norm,
    rms_norm_static_fp8_quant,
    rms_norm_dynamic_per_token_fp8_quant,
    fused_add_rms_norm_static_fp8_quant,
    fused_add_rms_norm_dynamic_per_token_fp8_quant,
    silu_and_mul,
    gelu_and_mul,
    silu_and_mul_static_fp8_quant,
    silu_and_mul_dynamic_per_token_fp8_quant,
    static_scaled_fp8_quant,
    dynamic_per_token_scaled_fp8_quant,
    rotary_embedding,
)
IN_PLACE = frozenset((fused_add_rms_norm, rotary_embedding))
