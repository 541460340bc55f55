"""The kernels for direct use: checked, with defaults, one clear error.

They take what ``predicates`` says, and raise where a provider would pass the call on to the next one. For speed
call ``torch.ops.opdock_cuda.*`` with arguments that are known to fit: those check shapes and strides, not devices.
"""

# ruff: noqa: FBT001 - answers of predicates
# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import functools
import inspect
import math
import numbers
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from opdock.errors import OpdockError, UnsupportedError
from opdock_cuda import library, predicates, rotary_cache

_REMEDY = (
    "give tensors of one CUDA device in float32, float16 or bfloat16, dense in the last dimension, under "
    "torch.no_grad(); opdock.ir.ops.{op} takes anything, and uses the kernel where it can."
)
_CACHE_REMEDY = (
    "give key and value as (tokens, heads, head_size), the caches as (blocks, block_size, heads, head_size), all of "
    "one dtype on one CUDA device, and one slot for each token."
)


_TYPES: dict[str, tuple[type, ...]] = {
    "Tensor": (Tensor,),
    "Tensor | None": (Tensor, type(None)),
    "float": (numbers.Real,),
    "int": (numbers.Integral,),
    "str": (str,),
    "bool": (bool,),
}


class ArgumentError(OpdockError, ValueError):
    """A kernel was called with arguments that it does not take; nothing was launched."""


def rms_norm(x: Tensor, weight: Tensor | None = None, epsilon: float = 1e-6) -> Tensor:
    """Normalise each row of x by its root mean square.

    Args:
        x: (..., hidden), float32, float16 or bfloat16; rows dense, up to two leading dimensions of any strides.
        weight: (hidden,) of x's dtype, or None.
        epsilon: added to the mean square, no unit, not negative.

    Returns: like x, dense.
    Raises: ArgumentError for other arguments; UnsupportedError where the kernels are not loaded.
    """
    _check("rms_norm", _said(predicates.rms_norm, x, weight, epsilon))
    return torch.ops.opdock_cuda.rms_norm.default(x, weight, epsilon)


def fused_add_rms_norm_(
    x: Tensor, x_residual: Tensor, weight: Tensor | None = None, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """Add the residual to x and normalise each row of the sum, in place: x becomes the norm, x_residual the sum.

    Args:
        x: (..., hidden), as for ``rms_norm``; written.
        x_residual: of x's shape and dtype, strides of its own; written.
        weight: (hidden,) of x's dtype, or None.
        epsilon: added to the mean square, no unit, not negative.

    Returns: x and x_residual.
    Raises: as ``rms_norm``.
    """
    _check(
        "fused_add_rms_norm",
        _said(predicates.fused_add_rms_norm, x, x_residual, weight, epsilon),
    )
    if _share_memory(x, x_residual):
        _check("fused_add_rms_norm", "x and x_residual share memory, and both are written")
    torch.ops.opdock_cuda.fused_add_rms_norm_.default(x, x_residual, weight, epsilon)
    return x, x_residual


def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None = None, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """Add the residual to x and normalise each row of the sum; the bits are those of ``fused_add_rms_norm_``.

    Args:
        x: (..., hidden), as for ``rms_norm``.
        x_residual: of x's shape and dtype, strides of its own.
        weight: (hidden,) of x's dtype, or None.
        epsilon: added to the mean square, no unit, not negative.

    Returns: the norm and the sum, dense, of x's shape and dtype.
    Raises: as ``rms_norm``.
    """
    _check("fused_add_rms_norm", _said(predicates.fused_add_rms_norm_kept, x, x_residual, weight, epsilon))
    return torch.ops.opdock_cuda.fused_add_rms_norm.default(x, x_residual, weight, epsilon)


def silu_and_mul(x: Tensor) -> Tensor:
    """Multiply the SiLU of the first half of x by the second half.

    Args:
        x: (..., 2 * d), as for ``rms_norm``.

    Returns: (..., d), of x's dtype, dense.
    Raises: as ``rms_norm``.
    """
    _check("silu_and_mul", _said(predicates.silu_and_mul, x))
    return torch.ops.opdock_cuda.silu_and_mul.default(x)


def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    """Multiply the GELU of the first half of x by the second half.

    Args:
        x: (..., 2 * d), as for ``rms_norm``.
        approximate: ``none`` or ``tanh``.

    Returns: (..., d), of x's dtype, dense.
    Raises: as ``rms_norm``.
    """
    _check("gelu_and_mul", _said(predicates.gelu_and_mul, x, approximate))
    return torch.ops.opdock_cuda.gelu_and_mul.default(x, approximate == "tanh")


def static_fp8(x: Tensor, scale: Tensor) -> Tensor:
    """Divide x by one scale and round it to float8_e4m3fn, saturating.

    Args:
        x: (..., hidden), as for ``rms_norm``.
        scale: one float32 number on x's device, of a step of 1 in the result, > 0.

    Returns: like x, float8_e4m3fn, dense.
    Raises: as ``rms_norm``.
    """
    _check("static_scaled_fp8_quant", _said(predicates.static_scaled_fp8_quant, x, scale))
    return torch.ops.opdock_cuda.static_fp8.default(x, scale)


def token_fp8(x: Tensor, scale_ub: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Quantise each row of x to float8_e4m3fn with a scale of its own.

    Args:
        x: (..., hidden), hidden > 0, as for ``rms_norm``.
        scale_ub: bound of a row's largest element, one float32 number on x's device, or None.

    Returns: like x, float8_e4m3fn; and the float32 scales, (..., 1); both dense.
    Raises: as ``rms_norm``.
    """
    _check(
        "dynamic_per_token_scaled_fp8_quant",
        _said(predicates.dynamic_per_token_scaled_fp8_quant, x, scale_ub),
    )
    return torch.ops.opdock_cuda.token_fp8.default(x, scale_ub)


def rms_norm_static_fp8(x: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float = 1e-6) -> Tensor:
    """Return ``static_fp8(rms_norm(x, weight, epsilon), scale)`` in one kernel; arguments and errors as there."""
    _check(
        "rms_norm_static_fp8_quant",
        _said(predicates.rms_norm_static_fp8_quant, x, weight, scale, epsilon),
    )
    return torch.ops.opdock_cuda.rms_norm_static_fp8.default(x, weight, scale, epsilon)


def rms_norm_token_fp8(
    x: Tensor, weight: Tensor | None = None, epsilon: float = 1e-6, scale_ub: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return ``token_fp8(rms_norm(x, weight, epsilon), scale_ub)`` in one kernel; arguments and errors as there."""
    _check(
        "rms_norm_dynamic_per_token_fp8_quant",
        _said(predicates.rms_norm_dynamic_per_token_fp8_quant, x, weight, epsilon, scale_ub),
    )
    return torch.ops.opdock_cuda.rms_norm_token_fp8.default(x, weight, epsilon, scale_ub)


def add_rms_norm_static_fp8(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """Add the residual, normalise and quantise with one scale; return the quantised rows and the sum, both new.

    Arguments and errors as in ``rms_norm`` and ``static_fp8``; x_residual is of x's shape and dtype.
    """
    _check(
        "fused_add_rms_norm_static_fp8_quant",
        _said(predicates.fused_add_rms_norm_static_fp8_quant, x, x_residual, weight, scale, epsilon),
    )
    return torch.ops.opdock_cuda.add_rms_norm_static_fp8.default(x, x_residual, weight, scale, epsilon)


def add_rms_norm_token_fp8(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None = None,
    epsilon: float = 1e-6,
    scale_ub: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Add the residual, normalise and quantise each row with a scale of its own; return rows, scales and the sum.

    Arguments and errors as in ``rms_norm`` and ``token_fp8``; x_residual is of x's shape and dtype.
    """
    said = _said(predicates.fused_add_rms_norm_dynamic_per_token_fp8_quant, x, x_residual, weight, epsilon, scale_ub)
    _check("fused_add_rms_norm_dynamic_per_token_fp8_quant", said)
    return torch.ops.opdock_cuda.add_rms_norm_token_fp8.default(x, x_residual, weight, epsilon, scale_ub)


def silu_and_mul_static_fp8(x: Tensor, scale: Tensor) -> Tensor:
    """Return ``static_fp8(silu_and_mul(x), scale)`` in one kernel; arguments and errors as there."""
    _check(
        "silu_and_mul_static_fp8_quant",
        _said(predicates.silu_and_mul_static_fp8_quant, x, scale),
    )
    return torch.ops.opdock_cuda.silu_and_mul_static_fp8.default(x, scale)


def silu_and_mul_token_fp8(x: Tensor, scale_ub: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return ``token_fp8(silu_and_mul(x), scale_ub)`` in one kernel; arguments and errors as there."""
    _check(
        "silu_and_mul_dynamic_per_token_fp8_quant",
        _said(predicates.silu_and_mul_dynamic_per_token_fp8_quant, x, scale_ub),
    )
    return torch.ops.opdock_cuda.silu_and_mul_token_fp8.default(x, scale_ub)


def rotary_embedding_(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    cos_sin_cache: Tensor,
    is_neox: bool = True,  # noqa: FBT002 - as in the IR op
) -> tuple[Tensor, Tensor]:
    """Rotate the pairs of each head of query and key by the angles of its position, in place.

    Args:
        positions: (tokens,), int64 or int32, dense. A row whose position the cache has not becomes NaN.
        query: (tokens, heads * head_size) or (tokens, heads, head_size), views too; written.
        key: alike, with its own number of heads; written.
        head_size: columns of a head.
        cos_sin_cache: (max_position, rot_dim), the cosines then the sines; float32 or query's dtype.
        is_neox: pairs are (j, j + rot_dim / 2), else (2 j, 2 j + 1).

    Returns: query and key.
    Raises: as ``rms_norm``.
    """
    _check(
        "rotary_embedding",
        _said(predicates.rotary_embedding, positions, query, key, head_size, cos_sin_cache, is_neox),
    )
    torch.ops.opdock_cuda.rotary_embedding_.default(positions, query, key, head_size, cos_sin_cache, is_neox)
    return query, key


def reshape_and_cache_(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> None:
    """Write keys and values into the slots of a paged cache.

    Args:
        key: (tokens, heads, head_size), the heads of a token side by side, views of qkv too.
        value: of key's shape.
        key_cache: (blocks, block_size, heads, head_size), blocks of any stride; written.
        value_cache: of key_cache's shape; written.
        slot_mapping: (tokens,), int64 or int32: block * block_size + place. A slot that is negative or not in the
            cache is left out. Fewer slots than keys: the first keys are written.

    Raises: ArgumentError for other arguments; UnsupportedError where the kernels are not loaded.
    """
    said = _said(predicates.reshape_and_cache, key, value, key_cache, value_cache, slot_mapping)
    _check("reshape_and_cache", said, _CACHE_REMEDY)
    torch.ops.opdock_cuda.reshape_and_cache_.default(key, value, key_cache, value_cache, slot_mapping)


def rotary_and_cache_(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    head_size: int,
    cos_sin_cache: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    is_neox: bool = True,  # noqa: FBT002
) -> None:
    """Rotate query and key as ``rotary_embedding_`` does, and write the rotated keys and the values to their slots.

    Args:
        positions: of ``rotary_embedding_``.
        query: of ``rotary_embedding_``; written.
        key: of ``rotary_embedding_``; written.
        value: (tokens, heads, head_size) of key's dtype, any strides but the last.
        key_cache: (blocks, block_size, heads, head_size) of key's dtype or float8_e4m3fn, blocks of any stride;
            written.
        value_cache: of key_cache's shape and dtype; written.
        slot_mapping: (tokens,), int64 or int32: block * block_size + place. A slot that is negative or not in the
            cache is left out.
        head_size: of ``rotary_embedding_``.
        cos_sin_cache: of ``rotary_embedding_``.
        k_scale: one float32, over which a float8_e4m3fn cache holds its keys; else not used.
        v_scale: likewise for values.
        is_neox: of ``rotary_embedding_``.

    Raises: ArgumentError for other arguments; UnsupportedError where the kernels are not loaded.
    """
    given = (positions, query, key, value, key_cache, value_cache, slot_mapping, head_size, cos_sin_cache)
    said = _said(rotary_cache.takes, *given, k_scale, v_scale, is_neox)
    _check("rotary_and_cache", said)
    torch.ops.opdock_cuda.rotary_and_cache_.default(*given, k_scale, v_scale, is_neox)


def _said(predicate: Callable[..., bool | str], *arguments: Any) -> bool | str:
    """Ask a predicate, which takes the types for granted, about arguments of any types."""
    if not torch.compiler.is_dynamo_compiling():
        for (name, kind), value in zip(_parameters(predicate), arguments, strict=False):
            if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "bool"):
                return f"{name} is of type {type(value).__name__}, and has to be: {kind}"
            if isinstance(value, Tensor) and value.layout is not torch.strided:
                return f"{name} is of layout {value.layout}, and has to be {torch.strided}"
            if name == "epsilon" and not _is_epsilon(value):
                return f"epsilon is {value}, and has to be a number from 0"
    return predicate(*arguments)


def _is_epsilon(value: Any) -> bool:
    return bool(0 <= value < math.inf)


@functools.cache
def _parameters(predicate: Callable[..., bool | str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, str(each.annotation)) for name, each in inspect.signature(predicate).parameters.items())


def _check(op: str, said: bool | str, remedy: str = _REMEDY) -> None:
    """Raise unless a predicate said yes and the kernels are there."""
    if said is not True:
        raise ArgumentError(
            f"opdock_cuda: the kernel of {op} does not take these arguments.",
            why=said if isinstance(said, str) else (),
            remedy=remedy.format(op=op),
        )
    reason = library.why_not()
    if reason:
        raise UnsupportedError(
            f"opdock_cuda: the kernel of {op} is not loaded.",
            why=reason,
            remedy="install a build of opdock-cuda that has them; layers and IR ops run without them.",
        )


def _share_memory(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors share memory; views of equal strides may interleave without sharing any."""
    if a.numel() == 0 or b.numel() == 0 or a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return False
    (a_start, a_end), (b_start, b_end) = _span(a), _span(b)
    if a_end <= b_start or b_end <= a_start:
        return False
    step = min((s for s, length in zip(a.stride()[:-1], a.shape[:-1], strict=True) if length > 1), default=1)
    return a.stride() != b.stride() or not a.shape[-1] <= (a_start - b_start) % step <= step - a.shape[-1]


def _span(x: Tensor) -> tuple[Any, Any]:
    """Return the first and the last place in the storage, in elements, the last one excluded."""
    start = x.storage_offset()
    return start, start + 1 + sum(stride * (length - 1) for stride, length in zip(x.stride(), x.shape, strict=True))
