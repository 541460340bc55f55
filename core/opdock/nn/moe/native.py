"""The definition of a step of experts: what every backend must compute."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from opdock.ir import native as definitions

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}


def fused_experts(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    activation: str = "silu",
    expert_map: torch.Tensor | None = None,
    w13_scale: torch.Tensor | None = None,
    w2_scale: torch.Tensor | None = None,
    *,
    by_row: bool = False,
) -> torch.Tensor:
    """Return the weighted sum of the experts of each token.

    y[t] = sum over slots s of weights[t, s] * w2[e] @ (act(gate) * up), e = ids[t, s], gate and up the halves of
    w13[e] @ x[t]; all in float32 at least, the rows between the two products rounded to x's dtype, the sum rounded
    once. Slots whose expert lies elsewhere, or is -1, add nothing.

    Args:
        x: (tokens, hidden), floating.
        w13: (experts, 2 * intermediate, hidden), gate rows first; x's dtype, or 8-bit floats with scales.
        w2: (experts, hidden, intermediate), likewise.
        weights: (tokens, top_k), floating.
        ids: (tokens, top_k) int32 or int64.
        activation: ``silu``, ``gelu`` or ``gelu_pytorch_tanh``.
        expert_map: (all experts,) int32: local number or -1; None: all experts are here.
        w13_scale: (experts, 2 * intermediate) float32, of each row of w13; each row of x is then quantised too.
        w2_scale: (experts, hidden) float32, of each row of w2; intermediate rows are then quantised too.
        by_row: compute each row by itself, so that its bits depend on no other; slower.

    Returns: (tokens, hidden), x's dtype.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    local = local_ids(ids, expert_map)
    out = torch.zeros(x.shape, dtype=wide, device=x.device)
    act, inner = ACTIVATIONS[activation], w2.shape[2]
    given = _rounded(x, w13.dtype, wide) if w13_scale is not None else x.to(wide)
    for expert in local.unique().tolist():
        if not 0 <= expert < w13.shape[0]:
            continue
        token, slot = torch.where(local == expert)
        first = _matrix(w13, w13_scale, expert, wide)
        second = _matrix(w2, w2_scale, expert, wide)
        step = 1 if by_row else max(1, token.shape[0])
        for i in range(0, token.shape[0], step):
            t, s = token[i : i + step], slot[i : i + step]
            made = F.linear(given[t], first)
            between = (act(made[:, :inner]) * made[:, inner:]).to(x.dtype)
            rows = _rounded(between, w2.dtype, wide) if w2_scale is not None else between.to(wide)
            out.index_add_(0, t, F.linear(rows, second) * weights[t, s, None].to(wide))
    return out.to(x.dtype)


def local_ids(ids: torch.Tensor, expert_map: torch.Tensor | None) -> torch.Tensor:
    """Return the local numbers of experts, -1 for those elsewhere and for -1."""
    if expert_map is None:
        return ids
    return torch.where(ids >= 0, expert_map[ids.clamp(min=0).long()].to(ids.dtype), -1)


def _matrix(w: torch.Tensor, scale: torch.Tensor | None, expert: int, wide: torch.dtype) -> torch.Tensor:
    matrix = w[expert].to(wide)
    return matrix if scale is None else matrix * scale[expert].to(wide)[:, None]


def _rounded(x: torch.Tensor, dtype: torch.dtype, wide: torch.dtype) -> torch.Tensor:
    """Return rows as 8-bit floats with a scale each, made wide again."""
    q, scales = definitions.dynamic_per_token_scaled_fp8_quant(x, None, dtype)
    return q.to(wide) * scales.to(wide)  # type: ignore[no-any-return]
