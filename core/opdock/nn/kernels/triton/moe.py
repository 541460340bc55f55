"""The experts of a step in Triton: a plan, two grouped products, and the sum of each token's places.

Everything runs on the current stream without a word from the device to the host, so that CUDA graphs can hold it.
"""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from opdock.nn.kernels.triton import interpreted
from opdock.nn.kernels.triton.launch import launch
from opdock.nn.kernels.triton.moe_gemm import grouped_gemm, sum_places
from opdock.nn.kernels.triton.moe_plan import Plan, make_plan
from opdock.nn.kernels.triton.quant import dynamic_per_token_scaled_fp8_quant

ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_pytorch_tanh": 2}
_SUM = 1024


class Tiles(NamedTuple):
    """How a grouped product is cut: rows, columns and depth of a tile, tiles of rows side by side, warps, stages.

    ``tma``: tiles of weights, and of rows that are not gathered, come through tensor descriptors.
    """

    rows: int
    columns: int
    depth: int
    group: int
    warps: int
    stages: int
    tma: bool = False


FIXED = Tiles(64, 128, 64, 4, 4, 4, tma=True)
"""For every number of tokens, where a token's bits must not depend on the others."""
OTHER_FIXED = Tiles(64, 64, 64, 8, 4, 3)
"""Likewise, on GPUs with less shared memory and without tensor descriptors."""


PLAIN = Tiles(16, 64, 32, 4, 4, 2)
"""For float32, which no matrix unit multiplies exactly: each step of a tile is written out, so tiles are small."""


def tiles_for(places: int, experts: int, columns: int, *, gated: bool, modern: bool, fixed: bool = False) -> Tiles:
    """Return the tiles for a step: the best of those tried on an H200 in bfloat16.

    Args:
        places: rows of the step, over all experts.
        experts: number of local experts.
        columns: of the product's output.
        gated: whether it is the first product, of two matrices.
        modern: whether the GPU has tensor descriptors, and 227 KiB of shared memory.
        fixed: tiles of every number of rows.
    """
    each = places / experts
    if not modern:
        return OTHER_FIXED if fixed or each > 24 else Tiles(16, 64, 64, 1, 4, 3)
    if fixed:
        return FIXED
    if each <= 20:
        narrow = gated and each <= 1 and columns <= 1024  # so that there are programs enough
        return Tiles(16, 64, 256, 1, 4, 3, tma=True) if narrow else Tiles(16, 128, 128, 1, 4, 3, tma=True)
    if each <= 128:
        return Tiles(64, 128, 64, 4, 4, 4, tma=True)
    return Tiles(128, 128, 64, 8, 8, 4, tma=True) if gated else Tiles(128, 256, 64, 8, 8, 3, tma=True)


@functools.cache
def is_modern(index: int) -> bool:
    """Return whether the GPU of that index has tensor descriptors and the shared memory of NVIDIA's since Hopper."""
    if index < 0 or interpreted() or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(index) in ((9, 0), (10, 0), (10, 3))


def fused_experts(
    x: Tensor,
    w13: Tensor,
    w2: Tensor,
    weights: Tensor,
    ids: Tensor,
    activation: str = "silu",
    expert_map: Tensor | None = None,
    w13_scale: Tensor | None = None,
    w2_scale: Tensor | None = None,
    *,
    fixed: bool = False,
    tiles: tuple[Tiles, Tiles] | None = None,
) -> Tensor:
    """Return the weighted sum of the experts of each token; see ``opdock.nn.moe.native.fused_experts``.

    Rows between the two products and the outputs of a token's places are rounded to x's dtype.

    Args:
        x: (tokens, hidden) float16, bfloat16 or float32, contiguous.
        w13: (experts, 2 * intermediate, hidden), gate rows first, contiguous; x's dtype, or 8-bit floats with scales.
        w2: (experts, hidden, intermediate), likewise.
        weights: (tokens, top_k) float32, contiguous.
        ids: (tokens, top_k) int32 or int64, contiguous.
        activation: of the gate.
        expert_map: (all experts,) int32: local number or -1; None: all experts are here.
        w13_scale: (experts, 2 * intermediate) float32, of each row of w13; each row of x is then quantised too.
        w2_scale: (experts, hidden) float32, of each row of w2; intermediate rows are then quantised too.
        fixed: one way of cutting for every number of tokens.
        tiles: for both products, with the same number of rows; None: by the sizes.
    """
    tokens, hidden = x.shape
    experts, inner, top_k = w13.shape[0], w2.shape[2], ids.shape[1]
    places = tokens * top_k
    if not tokens:
        return torch.empty_like(x)
    if tiles is None:
        tiles = choose_tiles(x.get_device(), w13, w2, places, fixed=fixed)
    first, second = tiles
    plan = make_plan(ids, experts, first.rows, expert_map)
    a, a_scale = (x, None) if w13_scale is None else _quantised(x, w13.dtype)
    between = torch.empty((places, inner), dtype=x.dtype, device=x.device)
    product(a, w13, between, plan, first, top_k, scales=(a_scale, w13_scale), act=ACTIVATIONS[activation])
    a, a_scale = (between, None) if w2_scale is None else _quantised(between, w2.dtype)
    parts = torch.empty((places, hidden), dtype=x.dtype, device=x.device)
    product(a, w2, parts, plan, second, top_k, scales=(a_scale, w2_scale), weights=weights)
    return add_places(parts, ids, expert_map)


def choose_tiles(index: int, w13: Tensor, w2: Tensor, places: int, *, fixed: bool = False) -> tuple[Tiles, Tiles]:
    """Return the tiles of both products on the GPU of that index; their blocks of rows are the same."""
    experts, hidden, inner = w2.shape
    modern = is_modern(index) and not any(w.stride(1) * w.element_size() % 16 or w.data_ptr() % 16 for w in (w13, w2))
    found = [
        tiles_for(places, experts, columns, gated=gated, modern=modern, fixed=fixed)
        for columns, gated in ((inner, True), (hidden, False))
    ]
    if w13.element_size() == 1:  # as many bytes of each row
        found = [t._replace(depth=2 * t.depth) for t in found]
    elif w13.element_size() == 4:
        found = [PLAIN, PLAIN]
    return found[0], found[1]


def add_places(parts: Tensor, ids: Tensor, expert_map: Tensor | None) -> Tensor:
    """Return the sum of each token's places, (tokens, hidden), of ``parts`` (tokens * top_k, hidden)."""
    tokens, top_k = ids.shape
    hidden = parts.shape[1]
    out = torch.empty((tokens, hidden), dtype=parts.dtype, device=parts.device)
    block = min(triton.next_power_of_2(hidden), _SUM)
    args = (parts, out, ids, expert_map, hidden, top_k)
    launch(sum_places, (tokens, triton.cdiv(hidden, block)), ("out_ptr",), args, 4, BLOCK=block)
    return out


def _quantised(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    q, scales = dynamic_per_token_scaled_fp8_quant(x, None, dtype)
    return q, scales.view(-1)


def _tiled(matrix: Tensor, rows: int, columns: int) -> TensorDescriptor:
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns])


def product(
    a: Tensor,
    b: Tensor,
    out: Tensor,
    plan: Plan,
    tiles: Tiles,
    top_k: int,
    *,
    weights: Tensor | None = None,
    scales: tuple[Tensor | None, Tensor | None] = (None, None),
    act: int | None = None,
) -> None:
    """Multiply the rows of a plan by their experts' matrices.

    Args:
        a: the tokens' rows with ``act``, otherwise rows in the plan's order.
        b: (experts, outputs, depth), with ``act`` (experts, 2 * outputs, depth): gate rows first.
        out: with ``act``, rows in the plan's order; otherwise those of the places, times ``weights``. Written.
        plan: made with ``tiles.rows``.
        tiles: how to cut.
        top_k: places of a token.
        weights: of the places, (tokens, top_k) float32.
        scales: of the rows of a, and of the rows of b; both or none.
        act: number of the activation of the gate, or None.
    """
    gated, depth = act is not None, a.shape[1]
    n = out.shape[1]
    a_tma, b_tma = tiles.tma and not gated, tiles.tma
    exact = a.dtype == torch.float32
    given_a = _tiled(a, tiles.rows, tiles.depth) if a_tma else a
    given_b = _tiled(b.view(-1, depth), tiles.columns, tiles.depth) if b_tma else b
    grid = (plan.blocks * triton.cdiv(n, tiles.columns),)
    launch(
        grouped_gemm,
        grid,
        ("out_ptr",),
        (out, given_a, given_b, plan.rows, plan.table, weights, *scales, n, depth, plan.blocks, top_k),
        tiles.warps,
        BM=tiles.rows,
        BN=tiles.columns,
        BK=tiles.depth,
        GROUP=tiles.group,
        GATED=gated,
        ACT=act or 0,
        GATHER=gated,
        SCATTER=not gated,
        EVEN_N=n % tiles.columns == 0,
        EVEN_K=depth % tiles.depth == 0,
        EXACT=exact,
        A_TMA=a_tma,
        B_TMA=b_tma,
        num_stages=tiles.stages,
    )
