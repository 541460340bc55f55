"""The providers of the IR ops, each a call of one operator of torch_npu.

The definitions say what is computed; ``predicates`` says which arguments an operator takes. Whether a row's bits are
the same in any batch is not documented and was not measured, so none promises it.
"""

# ruff: noqa: ARG001, D103, FBT001, FBT002 - signatures and documentation are those of the IR ops
# mypy: disable-error-code="untyped-decorator, no-any-return"
from __future__ import annotations

import torch
from torch import Tensor

from opdock import ir
from opdock_ascend import library, predicates, probe
from opdock_ascend.priorities import ASCEND, MUL

_npu = torch.ops.npu

ONE_POSITION = [0, 0, 0]
"""The sections of npu_mrope that make it the plain rotary embedding: one position for each token."""


def supported() -> bool | str:
    """Return True where torch_npu is loaded and an NPU is there, or why not."""
    return library.why_not() or probe.why_not() or True


@ir.ops.rms_norm.register_impl(ASCEND, supported=supported, supports_args=predicates.rms_norm)
def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    return _npu.npu_rms_norm.default(x.contiguous(), weight, epsilon)[0]


@ir.ops.fused_add_rms_norm.register_impl(ASCEND, supported=supported, supports_args=predicates.fused_add_rms_norm)
def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    y, _, total = _npu.npu_add_rms_norm.default(x.contiguous(), x_residual.contiguous(), weight, epsilon)
    return y, total


@ir.ops.silu_and_mul.register_impl(ASCEND, supported=supported, supports_args=predicates.silu_and_mul)
def silu_and_mul(x: Tensor) -> Tensor:
    return _npu.npu_swiglu.default(x.contiguous(), -1)


@ir.ops.gelu_and_mul.register_impl(ASCEND, supported=supported, supports_args=predicates.gelu_and_mul)
def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    return _npu.npu_gelu_mul.default(x.contiguous(), approximate=approximate)


@ir.ops.rotary_embedding.register_impl(ASCEND, supported=supported, supports_args=predicates.rotary_embedding)
def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox: bool = True
) -> tuple[Tensor, Tensor]:
    turned_query, turned_key = _npu.npu_mrope.default(
        positions.to(torch.int64),  # it reads no other
        query.reshape(query.shape[0], -1).contiguous(),
        key.reshape(key.shape[0], -1).contiguous(),
        cos_sin_cache,
        head_size,
        mrope_section=ONE_POSITION,
        rotary_mode=_mode(is_neox),
    )
    return turned_query.view(query.shape), turned_key.view(key.shape)


@ir.ops.rotary_embedding.register_impl(MUL, supported=supported, supports_args=predicates.rotary_mul)
def rotary_mul(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox: bool = True
) -> tuple[Tensor, Tensor]:
    cos, sin = cos_sin_cache.index_select(0, positions).chunk(2, dim=-1)
    if is_neox:
        cos, sin = torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)
    else:
        cos, sin = cos.repeat_interleave(2, dim=-1), sin.repeat_interleave(2, dim=-1)
    table = (1, positions.shape[0], 1, cos.shape[-1])
    cos, sin, mode = cos.view(table), sin.view(table), _mode(is_neox)
    return _turned(query, cos, sin, head_size, mode), _turned(key, cos, sin, head_size, mode)


def _turned(x: Tensor, cos: Tensor, sin: Tensor, head_size: int, mode: str) -> Tensor:
    heads, width = x.reshape(1, x.shape[0], -1, head_size), cos.shape[-1]
    out = _npu.npu_rotary_mul.default(heads[..., :width].contiguous(), cos, sin, mode)
    if width != head_size:
        out = torch.cat((out, heads[..., width:]), dim=-1)
    return out.view(x.shape)


def _mode(is_neox: bool) -> str:
    return "half" if is_neox else "interleave"
