"""What torch_npu's operators compute, in float64 on CPU tensors, under the schemas of their registrations.

Each refuses, with a ValueError, what the operator's documentation rules out for Atlas A2 (torch_npu's own
``_op_plugin_docs.py``; for ``atb`` the ATB reference), so that a call which the CPU could compute and an NPU would
refuse is no success here.
"""

# ruff: noqa: A002 - parameters have the names of the schemas

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from npu_standin.attention_references import (
    fusion_attention,
    paged_attention,
    reshape_and_cache,
)
from npu_standin.checks import FLOATS, HALVES, require

QUANTISED = 127.0


def rms_norm(input: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Return x / sqrt(mean(x^2) + epsilon) * gamma, and the reciprocal root."""
    _check_norm("npu_rms_norm", input, gamma)
    return _normalised(input.double(), gamma.double(), epsilon, input.dtype)


def gemma_rms_norm(input: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Return x / sqrt(mean(x^2) + epsilon) * (1 + gamma), and the reciprocal root."""
    _check_norm("npu_gemma_rms_norm", input, gamma)
    require(input.is_contiguous() and gamma.is_contiguous(), "npu_gemma_rms_norm takes no strided tensors")
    return _normalised(input.double(), 1 + gamma.double(), epsilon, input.dtype)


def add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    """The norm of x1 + x2, the reciprocal root, and x1 + x2."""
    _check_norm("npu_add_rms_norm", x1, gamma)
    require(x1.shape == x2.shape and x1.dtype == x2.dtype, "npu_add_rms_norm: x1 and x2 differ")
    total = x1.double() + x2.double()
    y, root = _normalised(total, gamma.double(), epsilon, x1.dtype)
    return y, root, total.to(x1.dtype)


def swiglu(input: Tensor, dim: int = -1) -> Tensor:
    """silu(first half) * second half."""
    require(input.dtype in FLOATS, f"npu_swiglu of {input.dtype}")
    require(1 <= input.ndim <= 8 and input.shape[dim] % 2 == 0, f"npu_swiglu of shape {tuple(input.shape)}")
    require(input.numel() > 0, "npu_swiglu takes no empty tensor")
    gate, up = input.double().chunk(2, dim=dim)
    return (gate * torch.sigmoid(gate) * up).to(input.dtype)


def gelu_mul(input: Tensor, *, approximate: str = "none") -> Tensor:
    """gelu(first half) * second half."""
    require(input.dtype in FLOATS and approximate in ("none", "tanh"), f"npu_gelu_mul of {input.dtype}, {approximate}")
    columns = input.shape[-1]
    require(2 <= input.ndim <= 8 and columns % 2 == 0 and columns <= 1024, f"npu_gelu_mul of {tuple(input.shape)}")
    require(0 < input.numel() <= columns * 200_000, "npu_gelu_mul: rows")
    gate, up = input.double().chunk(2, dim=-1)
    return (torch.nn.functional.gelu(gate, approximate=approximate) * up).to(input.dtype)


def rotary_mul(
    input: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half", rotate: Tensor | None = None
) -> Tensor:
    """Return input * r1 + rotated(input) * r2."""
    name = "npu_rotary_mul"
    require(rotate is None, f"{name}: no reference for a rotation matrix")
    require(input.ndim == r1.ndim == r2.ndim == 4, f"{name} takes four dimensions")
    require(input.dtype in FLOATS and r1.dtype == r2.dtype == input.dtype, f"{name}: dtypes differ")
    require(rotary_mode in ("half", "interleave"), f"{name} has no mode {rotary_mode!r}")
    batch, tokens, heads, width = input.shape
    require(width % 2 == 0 and width < 896, f"{name}: head width {width}")
    if rotary_mode == "half":
        require(batch < 1000 and heads < 1000, f"{name}: {batch} x {heads} in half mode")
    else:
        require(batch * heads < 1000, f"{name}: {batch} x {heads} in interleave mode")
    require(r1.shape == r2.shape == (1, tokens, 1, width), f"{name}: r1 of shape {tuple(r1.shape)}")
    require(input.numel() > 0, f"{name} takes no empty tensor")
    x = input.double()
    if rotary_mode == "half":
        a, b = x.chunk(2, dim=-1)
        turned = torch.cat((-b, a), dim=-1)
    else:
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    return (x * r1.double() + turned * r2.double()).to(input.dtype)


def mrope(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    *,
    mrope_section: list[int] | None = None,
    rotary_mode: str | None = "half",
    cache_mode: str | None = "default",
) -> tuple[Tensor, Tensor]:
    """The rotary embedding of query and key; with sections of zero, one position for each token."""
    name = "npu_mrope"
    require(positions.ndim == 1 and mrope_section in (None, [0, 0, 0]), f"{name}: no reference for several positions")
    require(positions.dtype is torch.int64, f"{name}: positions of {positions.dtype}")
    require(query.ndim == key.ndim == cos_sin_cache.ndim == 2, f"{name} takes two dimensions")
    require(query.dtype in FLOATS and query.dtype == key.dtype == cos_sin_cache.dtype, f"{name}: dtypes differ")
    width, multiple = cos_sin_cache.shape[1], 16 if query.dtype is torch.float32 else 32
    require(width % multiple == 0 and width <= head_size, f"{name}: rotary width {width}")
    require(rotary_mode in ("half", "interleave") and cache_mode == "default", f"{name}: modes")
    require(positions.numel() == 0 or int(positions.max()) < cos_sin_cache.shape[0], f"{name}: position out of range")
    cos, sin = cos_sin_cache[positions].double().unsqueeze(1).chunk(2, dim=-1)

    def turned(x: Tensor) -> Tensor:
        heads = x.double().reshape(x.shape[0], -1, head_size)
        part = heads[..., :width]
        a, b = part.chunk(2, dim=-1) if rotary_mode == "half" else (part[..., ::2], part[..., 1::2])
        pair = (a * cos - b * sin, b * cos + a * sin)
        out = torch.cat(pair, dim=-1) if rotary_mode == "half" else torch.stack(pair, dim=-1).flatten(-2)
        return torch.cat((out, heads[..., width:]), dim=-1).reshape(x.shape).to(x.dtype)

    return turned(query), turned(key)


def dynamic_quant(
    input: Tensor,
    *,
    smooth_scales: Tensor | None = None,
    group_index: Tensor | None = None,
    dst_type: int | None = None,
    quant_mode: str = "pertoken",
    dst_type_max: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Each row by its largest magnitude / 127, rounded to int8; and those scales."""
    name = "npu_dynamic_quant"
    require(smooth_scales is None and group_index is None, f"{name}: no reference for smoothing")
    require(quant_mode == "pertoken" and dst_type in (None, 1), f"{name}: int8 for each token alone")
    require(input.dtype in HALVES and input.ndim > 1, f"{name} of {input.dtype}, {input.ndim} dimensions")
    scale = input.double().abs().amax(dim=-1) / QUANTISED
    rows = torch.round(input.double() / torch.where(scale == 0, 1.0, scale).unsqueeze(-1))
    return rows.to(torch.int8), scale.float()


def quant_matmul(
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    *,
    offset: Tensor | None = None,
    pertoken_scale: Tensor | None = None,
    bias: Tensor | None = None,
    output_dtype: Any = None,
    **others: Any,
) -> Tensor:
    """(x1 @ x2) * scale of the column * scale of the row + bias."""
    name = "npu_quant_matmul"
    require(offset is None and not any(value is not None for value in others.values()), f"{name}: no reference")
    require(x1.dtype is x2.dtype is torch.int8, f"{name} of {x1.dtype} and {x2.dtype}")
    require(2 <= x1.ndim <= 6 and x2.ndim == 2, f"{name}: {x1.ndim} and {x2.ndim} dimensions")
    require(x1.numel() > 0, f"{name} takes no empty tensor")
    require(max(x1.shape[-1], x2.shape[-1]) <= 65535, f"{name}: rows of more than 65535")
    columns = x2.shape[1]
    require(scale.ndim == 1 and scale.numel() in (1, columns), f"{name}: scale of shape {tuple(scale.shape)}")
    dtype = output_dtype if isinstance(output_dtype, torch.dtype) else _DTYPES.get(output_dtype)
    require(dtype in HALVES, f"{name}: no reference for results of {output_dtype}")
    wanted = (torch.float32, torch.bfloat16) if dtype is torch.bfloat16 else (torch.float32,)
    require(scale.dtype in wanted, f"{name}: scale of {scale.dtype} beside results of {dtype}")
    y = (x1.double() @ x2.double()) * scale.double()
    if pertoken_scale is not None:
        require(pertoken_scale.dtype is torch.float32, f"{name}: pertoken_scale of {pertoken_scale.dtype}")
        require(pertoken_scale.shape == x1.shape[-2:-1], f"{name}: pertoken_scale of {tuple(pertoken_scale.shape)}")
        y = y * pertoken_scale.double().unsqueeze(-1)
    if bias is not None:
        require(bias.shape == (columns,) and bias.dtype in (dtype, torch.float32), f"{name}: bias")
        y = y + bias.double()
    return y.to(dtype)


_DTYPES = {5: torch.float16, 15: torch.bfloat16}  # the numbers of ScalarType


def _check_norm(name: str, x: Tensor, gamma: Tensor) -> None:
    require(x.dtype in FLOATS and gamma.dtype is x.dtype, f"{name} of {x.dtype} with gamma of {gamma.dtype}")
    require(1 <= x.ndim <= 8 and gamma.shape == x.shape[-1:], f"{name}: gamma of shape {tuple(gamma.shape)}")
    require(x.numel() > 0, f"{name} takes no empty tensor")


def _normalised(x: Tensor, gamma: Tensor, epsilon: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    root = torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + epsilon)
    return (x * root * gamma).to(dtype), root.float()


REFERENCES: dict[str, Callable[..., Any]] = {
    "npu::npu_rms_norm": rms_norm,
    "npu::npu_gemma_rms_norm": gemma_rms_norm,
    "npu::npu_add_rms_norm": add_rms_norm,
    "npu::npu_swiglu": swiglu,
    "npu::npu_gelu_mul": gelu_mul,
    "npu::npu_rotary_mul": rotary_mul,
    "npu::npu_mrope": mrope,
    "npu::npu_dynamic_quant": dynamic_quant,
    "npu::npu_quant_matmul": quant_matmul,
    "npu::npu_fusion_attention": fusion_attention,
    "atb::_npu_paged_attention": paged_attention,
    "atb::_npu_reshape_and_cache": reshape_and_cache,
}
"""Overload ``default`` of each; all other operators of torch_npu answer with the runtime's error."""
