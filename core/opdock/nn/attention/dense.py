"""Attention of one request over its keys, by the formula: what every backend must come to."""

from __future__ import annotations

import torch
from torch import Tensor

from opdock.nn.attention.impl import AttentionSpec

_SCORES = 1 << 24  # elements of one block of scores


def visible(rows: Tensor, columns: Tensor, window: int | None) -> Tensor:
    """Return which positions ``columns`` each of the positions ``rows`` sees, (rows, columns) bool."""
    behind = rows[:, None] - columns[None, :]
    seen = behind >= 0
    return seen if window is None else seen & (behind < window)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    spec: AttentionSpec,
    *,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Return the attention of the last positions of one request, scores and sums in float32 or wider.

    Shapes: query (new, num_heads, head_size), the last ``new`` positions; key and value (positions, num_kv_heads,
    head_size); returns like query, of its dtype. No positions: zeros.
    """
    new, total = query.shape[0], key.shape[0]
    if not new or not total:
        return torch.zeros_like(query)
    wide = torch.promote_types(query.dtype, torch.float32)
    group = spec.num_heads // spec.num_kv_heads
    k = key.to(wide).permute(1, 2, 0)[:, None]  # kv heads, 1, head_size, positions
    v = value.to(wide).permute(1, 0, 2)[:, None]
    q = query.to(wide).view(new, spec.num_kv_heads, group, spec.head_size).permute(1, 2, 0, 3)
    columns = torch.arange(total, device=query.device)
    out = torch.empty(new, spec.num_kv_heads, group, spec.head_size, dtype=query.dtype, device=query.device)
    step = max(1, _SCORES // (spec.num_heads * total))
    for start in range(0, new, step):
        end = min(new, start + step)
        rows = columns[total - new + start : total - new + end]
        scores = (q[:, :, start:end] @ k) * spec.scale
        if spec.logits_soft_cap is not None:
            scores = spec.logits_soft_cap * torch.tanh(scores / spec.logits_soft_cap)
        if alibi_slopes is not None:
            distance = (columns[None, :] - rows[:, None]).to(wide)
            scores = scores + alibi_slopes.to(wide).view(spec.num_kv_heads, group, 1, 1) * distance
        scores = scores.masked_fill(~visible(rows, columns, spec.sliding_window), float("-inf"))
        if sinks is not None:
            sink = sinks.to(wide).view(spec.num_kv_heads, group, 1, 1).expand(*scores.shape[:3], 1)
            scores = torch.cat((scores, sink), -1)
        weights = scores.softmax(-1)[..., :total]
        out[start:end] = (weights @ v).permute(2, 0, 1, 3).to(query.dtype)
    return out.view(new, spec.num_heads, spec.head_size)


def attend_by_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    spec: AttentionSpec,
    *,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Return what ``attend`` does, each position computed as if it were the last of its request.

    Its bits depend on the positions up to it alone: not on how a prompt is cut into steps, nor on where tensors lie.
    """
    new, total = query.shape[0], key.shape[0]
    if not new or not total:
        return torch.zeros_like(query)
    dense, wide = torch.contiguous_format, torch.promote_types(query.dtype, torch.float32)
    key, value = (t.to(wide, memory_format=dense, copy=True) for t in (key, value))
    rows = [
        attend(
            query[i : i + 1].clone(memory_format=dense),
            key[: total - new + i + 1],
            value[: total - new + i + 1],
            spec,
            alibi_slopes=alibi_slopes,
            sinks=sinks,
        )
        for i in range(new)
    ]
    return torch.cat(rows)
