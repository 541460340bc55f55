"""Rotary position embedding of queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor

from opdock.ir.ops._numerics import ShapeError
from opdock.ir.register import register_op


@register_op(activations=["query", "key"], allow_inplace=True, batch_invariant=True)
def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox: bool = True
) -> tuple[Tensor, Tensor]:
    """Rotate each head of query and key by the angles of its position.

    For a pair (a, b) of a head and its angle t: (a cos t - b sin t, b cos t + a sin t). The pairs are
    (j, j + rot_dim / 2) for ``is_neox`` and (2 j, 2 j + 1) otherwise; columns from rot_dim on pass through.

    Rounding points: computed in the wider of the cache's dtype and the data's (float32 for a float32 cache),
    rounded once to the data's dtype.

    Shapes: positions (num_tokens,); query (num_tokens, num_heads * head_size) or (num_tokens, num_heads,
        head_size), key alike with its own number of heads, views with any strides; cos_sin_cache (max_position,
        rot_dim), the cosines then the sines of rot_dim / 2 angles; returns query and key, dense, in their shapes.
    Dtypes: positions any integer; query, key float16, bfloat16, float32, float64; cache floating.
    Args: head_size, columns of a head; is_neox, halves or interleaved pairs.
    Mutates: nothing; maybe_inplace may reuse query and key.
    Raises: ShapeError if rot_dim is odd or larger than head_size, or the rows do not fit.
    Source: Su et al. 2021, arXiv:2104.09864.
    """
    rot_dim = cos_sin_cache.shape[-1]
    if rot_dim % 2 or rot_dim > head_size or positions.shape[0] != query.shape[0]:
        raise ShapeError(
            f"rotary_embedding: positions {tuple(positions.shape)}, query {tuple(query.shape)}, head_size {head_size} "
            f"and rot_dim {rot_dim} do not fit.",
            remedy="one position for each row, and an even rot_dim of at most head_size.",
        )
    cos, sin = cos_sin_cache.index_select(0, positions).chunk(2, dim=-1)
    return _rotate(query, cos, sin, head_size, is_neox), _rotate(key, cos, sin, head_size, is_neox)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, head_size: int, is_neox: bool) -> Tensor:
    heads = x if x.dim() == 3 else x.view(x.shape[0], x.shape[-1] // head_size, head_size)
    half = cos.shape[-1]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    rotated = heads[..., : 2 * half]
    first, second = rotated.chunk(2, dim=-1) if is_neox else (rotated[..., ::2], rotated[..., 1::2])
    pair = (first * cos - second * sin, second * cos + first * sin)
    out = torch.cat(pair, dim=-1) if is_neox else torch.stack(pair, dim=-1).flatten(-2)
    if out.dtype != x.dtype:
        out = out.to(x.dtype)
    if 2 * half < head_size:
        out = torch.cat((out, heads[..., 2 * half :]), dim=-1)
    return out if x.dim() == 3 else out.flatten(-2)


@rotary_embedding.register_input_generator
def _inputs(
    num_tokens: int = 8,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    head_size: int = 16,
    is_neox: bool = True,
    device: torch.device | str | None = None,
) -> tuple[Tensor, Tensor, Tensor, int, Tensor, bool]:
    positions = torch.randint(0, 128, (num_tokens,), device=device)
    heads = max(1, hidden_size // head_size)
    query, key = (
        torch.randn(num_tokens, n * head_size, dtype=dtype, device=device) for n in (heads, max(1, heads // 2))
    )
    angles = torch.outer(torch.arange(128.0), 10000.0 ** -(torch.arange(0, head_size, 2) / head_size))
    cache = torch.cat((angles.cos(), angles.sin()), dim=-1).to(device=device)
    return positions, query, key, head_size, cache, is_neox
