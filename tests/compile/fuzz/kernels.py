"""Opaque kernels, as a vendor would register them: what they write is known from their schema alone.

Each reads its second argument flipped, and after it began to write the first: a pass that lets the two share
memory changes the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from opdock import ir

NAMESPACE = "opdock_fuzz"
LIMIT = 8
_library = Library(NAMESPACE, "FRAGMENT")  # kernels live as long as it does


def _define(schema: str, fn: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    name = schema.partition("(")[0]
    _library.define(schema)
    _library.impl(name, fn, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def _nothing(*_: Any, **__: Any) -> None:
    return None


def flipped(y: Tensor) -> Tensor:
    """Return y with its rows in reverse."""
    return y.flip(0)


# -- kernels that a program calls


def _mix(x: Tensor, y: Tensor) -> None:
    x.mul_(2).add_(flipped(y)).clamp_(-LIMIT, LIMIT)


def _accumulate(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(0.5).add_(flipped(y)).clamp_(-LIMIT, LIMIT)
    return x.sum(0)


def _both(x: Tensor, z: Tensor, y: Tensor) -> None:
    x.add_(y).clamp_(-LIMIT, LIMIT)
    z.mul_(0.5).sub_(flipped(y)).clamp_(-LIMIT, LIMIT)


def _returning(x: Tensor, y: Tensor) -> Tensor:
    return x.mul_(-0.5).sub_(flipped(y)).clamp_(-LIMIT, LIMIT)


def _into(x: Tensor, out: Tensor) -> None:
    out.zero_().add_(flipped(x)).add_(1).clamp_(-LIMIT, LIMIT)


mix = _define("mix(Tensor(a!) x, Tensor y) -> ()", _mix, _nothing)
accumulate = _define("accumulate(Tensor(a!) x, Tensor y) -> Tensor", _accumulate, lambda x, y: x.sum(0))
both = _define("both(Tensor(a!) x, Tensor(b!) z, Tensor y) -> ()", _both, _nothing)
returning = _define("returning(Tensor(a!) x, Tensor y) -> Tensor(a!)", _returning, lambda x, y: x)
into = _define("into(Tensor x, *, Tensor(a!) out) -> ()", _into, _nothing)


# -- kernels behind providers of the ops in ops.py and of the host's


def _scale(x: Tensor, y: Tensor) -> None:
    x.mul_(0.5).add_(flipped(y)).clamp_(-LIMIT, LIMIT)


def _scale_into(x: Tensor, y: Tensor, out: Tensor) -> None:
    torch.mul(x, 0.5, out=out)
    out.add_(flipped(y)).clamp_(-LIMIT, LIMIT)


def _pair(x: Tensor, x_residual: Tensor, k: float) -> None:
    kept = x.clone()
    x.mul_(k).add_(x_residual).clamp_(-LIMIT, LIMIT)
    x_residual.mul_(0.5).add_(flipped(kept)).clamp_(-LIMIT, LIMIT)


def _affine(x: Tensor, weight: Tensor | None, scale: float) -> None:
    x.mul_(scale)
    if weight is not None:
        x.add_(weight)
    x.clamp_(-LIMIT, LIMIT)


def _fused(x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float) -> None:
    y, residual = ir.native.fused_add_rms_norm(x, x_residual, weight, epsilon)
    x.copy_(y)
    x_residual.copy_(residual)


def _rotary(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox: bool
) -> None:
    q, k = ir.native.rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox)
    query.copy_(q)
    key.copy_(k)


scale = _define("scale(Tensor(a!) x, Tensor y) -> ()", _scale, _nothing)
scale_into = _define("scale_into(Tensor x, Tensor y, *, Tensor(a!) out) -> ()", _scale_into, _nothing)
pair = _define("pair(Tensor(a!) x, Tensor(b!) x_residual, float k) -> ()", _pair, _nothing)
affine = _define("affine(Tensor(a!) x, Tensor? weight, float scale) -> ()", _affine, _nothing)
fused = _define("fused(Tensor(a!) x, Tensor(b!) x_residual, Tensor? weight, float epsilon) -> ()", _fused, _nothing)
rotary = _define(
    "rotary(Tensor positions, Tensor(a!) query, Tensor(b!) key, int head_size, Tensor cos_sin_cache, "
    "bool is_neox) -> ()",
    _rotary,
    _nothing,
)
