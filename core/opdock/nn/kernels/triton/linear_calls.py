"""Products with quantised weights as torch ops: one node each in a compiled graph, a kernel by the number of rows."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import functools

import torch
import triton
from torch import Tensor
from torch.library import Library

from opdock.nn.kernels.triton import interpreted
from opdock.nn.kernels.triton.dependent import can_depend, launch_dependent
from opdock.nn.kernels.triton.gemm_int4 import int4_linear as int4_kernel
from opdock.nn.kernels.triton.gemm_int4_row import int4_row
from opdock.nn.kernels.triton.launch import launch
from opdock.nn.kernels.triton.linear_scaled import scaled_linear as scaled_kernel
from opdock.nn.kernels.triton.linear_tuning import (
    INVARIANT_INT4,
    INVARIANT_SCALED,
    Tiles,
    int4_tiles,
    scaled_tiles,
)

MOST_ROWS_INT4 = 64
"""Beyond these, a dense weight and torch's product are faster."""

FAST_SUMS = False
"""Whether torch's fp8 product of many rows keeps its sums in the product unit, with fewer bits than float32."""

_library = Library("opdock", "FRAGMENT")


@functools.cache
def _locks(device: torch.device) -> Tensor:
    """Return zeros that kernels count with and leave zero; products of one device are on one stream at a time."""
    return torch.zeros(1 << 16, dtype=torch.int32, device=device)


def _workspace(x: Tensor, tiles: Tiles, grid: tuple[int, int]) -> tuple[Tensor | None, Tensor | None]:
    if tiles.split == 1:
        return None, None
    size = grid[0] * grid[1] * tiles.split * tiles.block_m * tiles.block_n
    return torch.empty(size, dtype=torch.float32, device=x.device), _locks(x.device)


def pack_words(codes: Tensor, words: int) -> Tensor:
    """Return codes (outputs, inputs) as int16 words (outputs, inputs / 4) of codes that lie ``words`` apart."""
    outputs, inputs = codes.shape
    c = codes.to(torch.int32).view(outputs, inputs // (4 * words), 4, words)
    packed = c[:, :, 0] | c[:, :, 1] << 4 | c[:, :, 2] << 8 | c[:, :, 3] << 12
    return torch.where(packed >= 2**15, packed - 2**16, packed).to(torch.int16).view(outputs, inputs // 4)


def unpack_words(packed: Tensor, scale: Tensor, shift: Tensor | None, words: int) -> Tensor:
    """Return the weight (outputs, inputs) as floats of the scales' dtype; the arguments are ``int4_linear``'s."""
    outputs = packed.shape[0]
    chunks = packed.view(outputs, -1, 1, words).to(torch.int32)
    shifts = torch.arange(0, 16, 4, dtype=torch.int32, device=packed.device).view(1, 1, 4, 1)
    codes = ((chunks >> shifts) & 0xF).view(outputs, -1)
    group = codes.shape[1] // scale.shape[0]
    floats = (codes - 8).to(scale.dtype).view(outputs, -1, group) * scale.t().unsqueeze(-1)
    if shift is not None:
        floats = (floats.float() + shift.t().unsqueeze(-1)).to(scale.dtype)
    return floats.flatten(1)


def int4_linear(
    x: Tensor,
    packed: Tensor,
    scale: Tensor,
    shift: Tensor | None,
    bias: Tensor | None,
    words: int,
    *,
    invariant: bool = False,
) -> Tensor:
    """Return x @ weight.T + bias for 4-bit weights, (code - 8) * scale + shift.

    Shapes: x (rows, inputs); packed int16 (outputs, inputs / 4), see ``pack_words``; scale (groups, outputs) like x;
        shift (groups, outputs) float32 or None; bias (outputs,) or None; returns (rows, outputs).
    Dtypes: x float16 or bfloat16.
    Args: words, how far the codes of a word lie apart; invariant, whether the bits of a row must not depend on the
        rows beside it, which costs speed.
    """
    found: Tensor = torch.ops.opdock.int4_linear(x, packed, scale, shift, bias, words, invariant)
    return found


def scaled_linear(
    x: Tensor,
    weight: Tensor,
    x_scale: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    *,
    invariant: bool = False,
) -> Tensor:
    """Return (x * x_scale) @ (weight * scale).T + bias for 8-bit x and weight.

    Shapes: x (rows, inputs) and weight (outputs, inputs), dense; x_scale (1,), (rows, 1), or for blocks
        (rows, inputs / 128); scale (1,), (outputs,), or for blocks (outputs / 128, inputs / 128), rounded up; bias
        (outputs,) or None; returns (rows, outputs) of ``out_dtype``.
    Dtypes: x and weight both int8 or both float8_e4m3fn; scales float32.
    Args: invariant, whether the bits of a row must not depend on the rows beside it, which costs speed.
    """
    found: Tensor = torch.ops.opdock.scaled_linear(x, weight, x_scale, scale, bias, out_dtype, invariant)
    return found


def _int4_linear(
    x: Tensor,
    packed: Tensor,
    scale: Tensor,
    shift: Tensor | None,
    bias: Tensor | None,
    words: int,
    invariant: bool,  # noqa: FBT001 - a parameter of a torch op
) -> Tensor:
    rows, inputs = x.shape
    outputs = packed.shape[0]
    if rows > MOST_ROWS_INT4 and not invariant and not interpreted():
        return torch.nn.functional.linear(x, unpack_words(packed, scale, shift, words), bias)
    out = x.new_empty(rows, outputs)
    if not rows:
        return out
    group = inputs // scale.shape[0]
    tiles = INVARIANT_INT4 if invariant else int4_tiles(rows, outputs, inputs, words, own=words == group)
    dependent = tiles.dependent and can_depend(x.get_device())
    start = launch_dependent if dependent else launch
    fast = torch.version.cuda is not None and not interpreted()
    if tiles.row and rows == 1 and words == group:
        start(
            int4_row,
            (triton.cdiv(outputs, tiles.block_n),),
            ("out_ptr",),
            (x, packed, scale, shift, bias, out, outputs, inputs),
            tiles.num_warps,
            BLOCK_N=tiles.block_n,
            CHUNKS=tiles.block_k // words,
            STEPS=triton.cdiv(inputs // 4, tiles.block_k),
            WORDS=words,
            FAST=fast,
            DEPENDENT=dependent,
        )
        return out
    grid = (triton.cdiv(outputs, tiles.block_n), triton.cdiv(rows, tiles.block_m))
    parts, locks = _workspace(x, tiles, grid)
    start(
        int4_kernel,
        (*grid, tiles.split),
        ("out_ptr", "parts_ptr", "locks_ptr"),
        (x, packed, scale, shift, bias, out, parts, locks, rows, outputs, inputs, x.stride(0), group),
        tiles.num_warps,
        BLOCK_M=tiles.block_m,
        BLOCK_N=tiles.block_n,
        WORDS=words,
        STEP=min(tiles.step or words, words),
        OWN_SCALES=words == group,
        FAST=fast,
        EVEN=outputs % tiles.block_n == 0,
        SPLIT=tiles.split,
        STAGES=tiles.stages,
        ALIGN=16 if tiles.wide else 4,
        DEPENDENT=dependent,
    )
    return out


def _scaled_linear(
    x: Tensor,
    weight: Tensor,
    x_scale: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    invariant: bool,  # noqa: FBT001 - a parameter of a torch op
) -> Tensor:
    rows, inputs = x.shape
    outputs = weight.shape[0]
    integer, blocked = x.dtype == torch.int8, scale.dim() == 2
    out = torch.empty(rows, outputs, dtype=out_dtype, device=x.device)
    if not rows:
        return out
    one_scale = x_scale.numel() == scale.numel() == 1
    tiles = INVARIANT_SCALED if invariant else scaled_tiles(rows, outputs, inputs, one_scale=one_scale)
    if tiles is None and not blocked and not interpreted() and (not integer or _int_mm_takes(rows, inputs, outputs)):
        return _by_torch(x, weight, x_scale, scale, bias, out_dtype)
    tiles = tiles or Tiles(128, 128, 128, 1, 3, 8)
    dependent = tiles.dependent and can_depend(x.get_device())
    grid = (triton.cdiv(outputs, tiles.block_n), triton.cdiv(rows, tiles.block_m))
    parts, locks = _workspace(x, tiles, grid)
    (launch_dependent if dependent else launch)(
        scaled_kernel,
        (*grid, tiles.split),
        ("out_ptr", "parts_ptr", "locks_ptr"),
        (x, weight, x_scale, scale, bias, out, parts, locks, rows, outputs, inputs),
        tiles.num_warps,
        X_PER_ROW=x_scale.numel() > 1,
        W_PER_ROW=scale.numel() > 1,
        BLOCKED=blocked,
        INTEGER=integer,
        EVEN=inputs % tiles.block_k == 0,
        IMPRECISE=128 if blocked else tiles.block_k,
        BLOCK_M=tiles.block_m,
        BLOCK_N=tiles.block_n,
        BLOCK_K=128 if blocked else tiles.block_k,
        SPLIT=tiles.split,
        STAGES=tiles.stages,
        DEPENDENT=dependent,
    )
    return out


def _int_mm_takes(rows: int, inputs: int, outputs: int) -> bool:
    """Return whether ``torch._int_mm`` takes a product of this size on an NVIDIA GPU."""
    return rows > 16 and inputs % 8 == 0 and outputs % 8 == 0


def _by_torch(
    x: Tensor, weight: Tensor, x_scale: Tensor, scale: Tensor, bias: Tensor | None, out_dtype: torch.dtype
) -> Tensor:
    if x.dtype == torch.int8:
        y = torch._int_mm(x, weight.t()).float() * x_scale * scale
        return (y if bias is None else y + bias.float()).to(out_dtype)
    rows, outputs = x.shape[0], weight.shape[0]
    if x_scale.numel() == 1 and scale.numel() == 1:
        a, b = x_scale.view(()), scale.view(())
    else:
        a = x_scale.view(-1, 1).expand(rows, 1).contiguous()
        b = scale.view(1, -1).expand(1, outputs).contiguous()
    fast = FAST_SUMS and rows > 64
    return torch._scaled_mm(x, weight.t(), scale_a=a, scale_b=b, bias=bias, out_dtype=out_dtype, use_fast_accum=fast)


def _define() -> None:
    _library.define(
        "int4_linear(Tensor x, Tensor packed, Tensor scale, Tensor? shift, Tensor? bias, int words, "
        "bool invariant) -> Tensor"
    )
    _library.define(
        "scaled_linear(Tensor x, Tensor weight, Tensor x_scale, Tensor scale, Tensor? bias, ScalarType out_dtype, "
        "bool invariant) -> Tensor"
    )
    for name, call in (("int4_linear", _int4_linear), ("scaled_linear", _scaled_linear)):
        for key in ("CUDA", "CPU") if interpreted() else ("CUDA",):
            _library.impl(name, call, key)
    _library._register_fake("int4_linear", lambda x, packed, *_: x.new_empty(x.shape[0], packed.shape[0]))
    _library._register_fake(
        "scaled_linear", lambda x, weight, *rest: x.new_empty(x.shape[0], weight.shape[0], dtype=rest[-2])
    )


_define()
