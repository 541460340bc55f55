"""IR ops for the fuzzer, with providers of every kind; all providers of an op give identical bits.

The layout of a result is that of the activation it may replace, in the definition and in each provider.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fuzz import kernels
from fuzz.kernels import LIMIT, flipped
from opdock import ir, journal


class _Done(Exception):
    """Ends the transaction by rolling it back."""


@contextlib.contextmanager
def registered() -> Iterator[None]:
    """Have the fuzzer's ops and providers registered inside the block, and nothing of them after it."""
    with contextlib.suppress(_Done), journal.transaction():
        for register in (_scale, _pair, _affine, _turn, _join, _of_the_host):
            register()
        for op in ir.registry.values():
            if op.default_names is None:
                op.set_default(["native"])
        yield
        raise _Done


def _scale() -> None:
    @ir.register_op(activations=["x"], allow_inplace=True)
    def fuzz_scale(x: Tensor, y: Tensor) -> Tensor:
        return (x * 0.5 + y.flip(0)).clamp(-LIMIT, LIMIT)

    @fuzz_scale.register_impl("pure")
    def pure(x: Tensor, y: Tensor) -> Tensor:
        return torch.clamp(torch.add(torch.div(x, 2), flipped(y)), min=-LIMIT, max=LIMIT)

    @fuzz_scale.register_impl("opaque", inplace=True)
    def opaque(x: Tensor, y: Tensor) -> Tensor:
        kernels.scale(x, y)
        return x

    @fuzz_scale.register_impl("methods", inplace=True)
    def methods(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(0.5)
        x.add_(flipped(y))
        return x.clamp_(-LIMIT, LIMIT)

    @fuzz_scale.register_impl("picky", inplace=True, supports_args=lambda x, y: x.shape[0] % 4 == 0 or "rows")
    def picky(x: Tensor, y: Tensor) -> Tensor:
        kernels.scale(x, y)
        return x

    @fuzz_scale.register_impl("buffer")
    def buffer(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        torch.add(x * 0.5, flipped(y), out=out)
        return torch.clamp(out, -LIMIT, LIMIT, out=out)

    @fuzz_scale.register_impl("opaque_buffer")
    def opaque_buffer(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        kernels.scale_into(x, y, out=out)
        return out


def _pair() -> None:
    @ir.register_op(activations=["x", "x_residual"], allow_inplace=True)
    def fuzz_pair(x: Tensor, x_residual: Tensor, k: float = 2.0) -> tuple[Tensor, Tensor]:
        first = (x * k + x_residual).clamp(-LIMIT, LIMIT)
        return first, (x_residual * 0.5 + x.flip(0)).clamp(-LIMIT, LIMIT)

    @fuzz_pair.register_impl("opaque", inplace=True)
    def opaque(x: Tensor, x_residual: Tensor, k: float = 2.0) -> tuple[Tensor, Tensor]:
        kernels.pair(x, x_residual, k)
        return x, x_residual

    @fuzz_pair.register_impl("methods", inplace=True)
    def methods(x: Tensor, x_residual: Tensor, k: float = 2.0) -> tuple[Tensor, Tensor]:
        kept = x.clone()
        x.mul_(k).add_(x_residual).clamp_(-LIMIT, LIMIT)
        x_residual.mul_(0.5).add_(flipped(kept)).clamp_(-LIMIT, LIMIT)
        return x, x_residual

    @fuzz_pair.register_impl("picky", inplace=True, supports_args=lambda x, x_residual, k=2.0: k == 1.0)
    def picky(x: Tensor, x_residual: Tensor, k: float = 2.0) -> tuple[Tensor, Tensor]:
        kernels.pair(x, x_residual, k)
        return x, x_residual


def _affine() -> None:
    @ir.register_op(activations=["x"], allow_inplace=True)
    def fuzz_affine(x: Tensor, weight: Tensor | None, scale: float, turned: bool = False) -> Tensor:
        out = x * scale
        if weight is not None:
            out = out + weight
        out = out.clamp(-LIMIT, LIMIT)
        return out.flip(0) if turned else out

    @fuzz_affine.register_impl("opaque", inplace=True, supports_args=lambda x, weight, scale, turned=False: not turned)
    def opaque(x: Tensor, weight: Tensor | None, scale: float, turned: bool = False) -> Tensor:
        kernels.affine(x, weight, scale)
        return x

    @fuzz_affine.register_impl("scratch", inplace=True)
    def scratch(x: Tensor, weight: Tensor | None, scale: float, turned: bool = False) -> Tensor:
        """Use the activation as scratch space first, and as the result last."""
        kernels.affine(x, weight, scale)
        if turned:
            x.copy_(x.flip(0))
        return x


def _turn() -> None:
    @ir.register_op
    def fuzz_turn(x: Tensor) -> Tensor:
        return (x * 0.5).transpose(0, -1)

    @fuzz_turn.register_impl("buffer")
    def buffer(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        out.copy_(x)
        return out.mul_(0.5).transpose(0, -1)


def _join() -> None:
    @ir.register_op
    def fuzz_join(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat([x, y])[1:], flipped(y)

    @fuzz_join.register_impl("buffer")
    def buffer(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        out = x.new_empty((x.shape[0] + y.shape[0], *x.shape[1:]))
        out[: x.shape[0]].copy_(x)
        out[x.shape[0] :].copy_(y)
        return out[1:], flipped(y)


def _of_the_host() -> None:
    """Give in-place providers to the ops of the host that allow them."""
    norm: Any = ir.ops.fused_add_rms_norm

    def dense(
        x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> bool:
        return variance_size is None and x.is_contiguous() and x_residual.is_contiguous()

    @norm.register_impl("fuzz_opaque", inplace=True, supports_args=dense)
    def fused(
        x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> tuple[Tensor, Tensor]:
        kernels.fused(x, x_residual, weight, epsilon)
        return x, x_residual

    rotary: Any = ir.ops.rotary_embedding

    def by_row(
        positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox: bool = True
    ) -> bool:
        return query.stride(-1) == 1 and key.stride(-1) == 1

    @rotary.register_impl("fuzz_opaque", inplace=True, supports_args=by_row)
    def rotate(
        positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox: bool = True
    ) -> tuple[Tensor, Tensor]:
        kernels.rotary(positions, query, key, head_size, cos_sin_cache, is_neox)
        return query, key
