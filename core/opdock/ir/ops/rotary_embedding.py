"""Rotary position embedding of queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor

from opdock.ir.ops._numerics import ShapeError, widen
from opdock.ir.registering import register_op


@register_op(activations=["query", "key"], allow_inplace=True, batch_invariant=True)
def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox: bool = True
) -> tuple[Tensor, Tensor]:
    """Rotate the pairs of each head of query and key by the angles of its position.

    For a pair (a, b) and its angle t: (a cos t - b sin t, b cos t + a sin t). The pairs are (j, j + rot_dim / 2)
    for ``is_neox`` and (2 j, 2 j + 1) otherwise; columns from rot_dim on pass through, bit for bit.

    Rounding points: computed in float32 (in float64 if the data or the cache is), rounded once to the data's
    dtype. The angles are as exact as the cache's dtype.

    Shapes: positions (num_tokens,); query (num_tokens, num_heads * head_size) or (num_tokens, num_heads,
        head_size), key alike with its own number of heads, views with any strides; cos_sin_cache (max_position,
        rot_dim), the cosines then the sines of rot_dim / 2 angles; returns query and key, dense, in their shapes.
    Dtypes: positions any integer; query, key float16, bfloat16, float32, float64; cache any of them.
    Args: head_size, columns of a head; is_neox, halves or interleaved pairs.
    Mutates: nothing; maybe_inplace may reuse query and key.
    Batch: invariant; products and sums alone, each element on its own.
    Raises: ShapeError if rot_dim is odd or larger than head_size, or the rows do not fit; IndexError for a
        position outside the cache.
    Source: Su et al. 2021, arXiv:2104.09864.
    """
    rot_dim, rows = cos_sin_cache.shape[-1], positions.shape
    if len(rows) != 1 or rot_dim % 2 or not 0 < rot_dim <= head_size:
        raise _misfit(positions, query, key, head_size, rot_dim)
    for shape in (query.shape, key.shape):
        whole = shape[-1] == head_size if len(shape) == 3 else len(shape) == 2 and not shape[-1] % head_size
        if shape[0] != rows[0] or not whole:
            raise _misfit(positions, query, key, head_size, rot_dim)
    if positions.dtype not in (torch.int64, torch.int32):
        positions = positions.long()
    cos, sin = widen(cos_sin_cache.index_select(0, positions)).unsqueeze(1).chunk(2, dim=-1)
    return _rotate(query, cos, sin, head_size, is_neox), _rotate(key, cos, sin, head_size, is_neox)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, head_size: int, is_neox: bool) -> Tensor:
    shape, rot_dim = x.shape, 2 * cos.shape[-1]
    heads = x if len(shape) == 3 else x.view(shape[0], shape[-1] // head_size, head_size)
    # Widened once, as a whole: products of two dtypes convert every operand anew.
    rotated = widen(heads if rot_dim == head_size else heads[..., :rot_dim])
    a, b = rotated.chunk(2, dim=-1) if is_neox else (rotated[..., ::2], rotated[..., 1::2])
    pair = a * cos - b * sin, b * cos + a * sin
    out = (torch.cat(pair, dim=-1) if is_neox else torch.stack(pair, dim=-1).flatten(-2)).to(x.dtype)
    if rot_dim != head_size:
        out = torch.cat((out, heads[..., rot_dim:]), dim=-1)
    return out if len(shape) == 3 else out.view(shape)


def _misfit(positions: Tensor, query: Tensor, key: Tensor, head_size: int, rot_dim: int) -> ShapeError:
    return ShapeError(
        f"rotary_embedding: positions {tuple(positions.shape)}, query {tuple(query.shape)}, key {tuple(key.shape)}, "
        f"head_size {head_size} and rot_dim {rot_dim} do not fit.",
        remedy="one position for each row, rows of whole heads, an even rot_dim of at most head_size.",
    )


@rotary_embedding.register_input_generator
def _inputs(
    num_tokens: int = 8,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    head_size: int | None = None,
    is_neox: bool = True,
) -> tuple[Tensor, Tensor, Tensor, int, Tensor, bool]:
    sizes = (n for n in (128, 64, 32, 16) if hidden_size % n == 0 and hidden_size > n)
    size = head_size or next(sizes, max(hidden_size, 2))
    heads = max(1, hidden_size // size)
    positions = torch.randint(0, 128, (num_tokens,), device=device)
    query = torch.randn(num_tokens, heads * size, dtype=dtype, device=device)
    key = torch.randn(num_tokens, max(1, heads // 2) * size, dtype=dtype, device=device)
    pairs = torch.arange(size // 2, device=device, dtype=torch.float32)
    angles = torch.arange(128, device=device, dtype=torch.float32)[:, None] * 10000.0 ** (-pairs / max(1, size // 2))
    return positions, query, key, size, torch.cat((angles.cos(), angles.sin()), dim=-1).to(dtype), is_neox
