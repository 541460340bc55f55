"""Attention operators of torch_npu and ATB, in float64; see ``references``."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from npu_standin.checks import FLOATS, HALVES, require

COMPRESSED = (2048, 2048)
"""The shape of the mask in the causal modes."""
LAYOUTS = ("BSND", "BNSD", "TND")
LEFT_UP, RIGHT_DOWN = 2, 3


def attend(query: Tensor, key: Tensor, value: Tensor, scale: float, hidden: Tensor | None) -> Tensor:
    """softmax(scale * query @ key.T, without what is hidden) @ value.

    Shapes: query (heads, new, size); key and value (kv heads, all, size), shared by groups of query heads; hidden
    (new, all), True where a key is not seen.
    """
    group = query.shape[0] // key.shape[0]
    keys, values = (x.double().repeat_interleave(group, dim=0) for x in (key, value))
    scores = scale * query.double() @ keys.transpose(1, 2)
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    return torch.softmax(scores, dim=-1) @ values


def fusion_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    pse: Tensor | None = None,
    padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = 2147483647,
    next_tockens: int = 2147483647,
    inner_precise: int = 0,
    prefix: list[int] | None = None,
    actual_seq_qlen: list[int] | None = None,
    actual_seq_kvlen: list[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: Tensor | None = None,
    dropout_mask: Tensor | None = None,
    seed: int = 0,
    offset: int = 0,
) -> tuple[Any, ...]:
    """Attention of sequences of one length, or (TND) of lengths that are given as cumulated sums."""
    name = "npu_fusion_attention"
    unused = (pse, padding_mask, prefix, sink, dropout_mask)
    require(all(value is None for value in unused) and keep_prob == 1.0, f"{name}: no reference for this option")
    require(input_layout in LAYOUTS, f"{name}: no reference for layout {input_layout}")
    require(query.dtype in FLOATS and query.dtype == key.dtype == value.dtype, f"{name}: dtypes differ")
    require(key.shape == value.shape and query.shape[-1] == key.shape[-1] <= 768, f"{name}: shapes")
    require(sparse_mode in (0, LEFT_UP, RIGHT_DOWN), f"{name}: no reference for sparse_mode {sparse_mode}")
    if atten_mask is not None:
        require(atten_mask.dtype in (torch.bool, torch.uint8), f"{name}: mask of {atten_mask.dtype}")
    if sparse_mode in (LEFT_UP, RIGHT_DOWN):
        fits = atten_mask is not None and atten_mask.shape == COMPRESSED
        require(fits, f"{name}: the causal modes take a mask of {COMPRESSED}")
        above = torch.ones(COMPRESSED, dtype=torch.bool).triu(1)
        require(torch.equal(atten_mask.bool(), above), f"{name}: the mask of the causal modes hides what lies above")
    heads = query.shape[{"BSND": 2, "BNSD": 1, "TND": 1}[input_layout]]
    kv_heads = key.shape[{"BSND": 2, "BNSD": 1, "TND": 1}[input_layout]]
    require(head_num == heads <= 256 and heads % kv_heads == 0, f"{name}: {heads} heads over {kv_heads}")
    if input_layout == "TND":
        require(bool(actual_seq_qlen and actual_seq_kvlen), f"{name}: TND takes actual_seq_qlen and actual_seq_kvlen")
        ends, kv_ends = list(actual_seq_qlen or ()), list(actual_seq_kvlen or ())
        require(len(ends) == len(kv_ends), f"{name}: as many lengths of queries as of keys")
        require(ends[-1] == query.shape[0] and kv_ends[-1] == key.shape[0], f"{name}: lengths are cumulated sums")
        parts = []
        for i in range(len(ends)):
            rows = slice(ends[i - 1] if i else 0, ends[i])
            kv_rows = slice(kv_ends[i - 1] if i else 0, kv_ends[i])
            q, k, v = (x.transpose(0, 1) for x in (query[rows], key[kv_rows], value[kv_rows]))
            parts.append(attend(q, k, v, scale, _hidden(q, k, atten_mask, sparse_mode)).transpose(0, 1))
        out = torch.cat(parts).to(query.dtype)
    else:
        q, k, v = (x.transpose(1, 2) if input_layout == "BSND" else x for x in (query, key, value))
        hidden = _hidden(q[0], k[0], atten_mask, sparse_mode)
        made = torch.stack([attend(q[i], k[i], v[i], scale, hidden) for i in range(q.shape[0])])
        out = (made.transpose(1, 2) if input_layout == "BSND" else made).to(query.dtype)
    empty = torch.empty(0, dtype=torch.float32)
    return out.contiguous(), empty, empty.clone(), empty.clone(), 0, 0, 0


def _hidden(query: Tensor, key: Tensor, mask: Tensor | None, sparse_mode: int) -> Tensor | None:
    if mask is None:
        return None
    new, length = query.shape[1], key.shape[1]
    if sparse_mode == 0:
        require(mask.shape[-2:] == (new, length), "npu_fusion_attention: a whole mask in mode 0")
        return mask.bool().reshape(new, length)
    past = length - new if sparse_mode == RIGHT_DOWN else 0
    return torch.ones(new, length, dtype=torch.bool).triu(past + 1)


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    block_table: Tensor,
    context_lens: Tensor,
    out: Tensor,
    *,
    workspace: Tensor | None = None,
) -> None:
    """One query for each sequence, over the blocks that its row of the table names; written to ``out``."""
    name = "_npu_paged_attention"
    require(query.dtype in HALVES, f"{name} of {query.dtype}")
    require(key_cache.dtype == value_cache.dtype == query.dtype == out.dtype, f"{name}: dtypes differ")
    require(query.ndim == 3 and query.shape[1] == num_heads and out.shape == query.shape, f"{name}: query")
    require(key_cache.ndim == 4 and key_cache.shape == value_cache.shape, f"{name}: caches")
    block_size, kv_heads, size = key_cache.shape[1:]
    require(kv_heads == num_kv_heads and size == query.shape[2] <= 256, f"{name}: heads of the cache")
    require(block_size % 16 == 0 and block_size <= 128, f"{name}: blocks of {block_size}")
    require(block_size * size <= 128 * 128 and len(query) <= 8192, f"{name}: {block_size} x {size}, {len(query)}")
    require(context_lens.device.type == "cpu" and bool((block_table >= 0).all()), f"{name}: lengths, table")
    require(bool((block_table < key_cache.shape[0]).all()), f"{name}: a block that is not there")
    require(all(x.is_contiguous() for x in (query, key_cache, value_cache, block_table, out)), f"{name}: strided")
    require(block_table.dtype is torch.int32 and context_lens.dtype is torch.int32, f"{name} takes int32")
    require(len(context_lens) == len(block_table) == len(query), f"{name}: one row for each sequence")
    for row, length in enumerate(context_lens.tolist()):
        blocks = block_table[row, : -(-length // block_size)].long()
        k, v = (x[blocks].reshape(-1, kv_heads, size)[:length].transpose(0, 1) for x in (key_cache, value_cache))
        out[row] = attend(query[row].unsqueeze(1), k, v, scale_value, None).squeeze(1).to(out.dtype)


def reshape_and_cache(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_indices: Tensor) -> None:
    """Copy each token's key and value into its slot."""
    name = "_npu_reshape_and_cache"
    require(key.dtype in (*HALVES, torch.int8), f"{name} of {key.dtype}")
    require(key.dtype == value.dtype == key_cache.dtype == value_cache.dtype, f"{name}: dtypes differ")
    require(key.ndim == value.ndim == 3 and key_cache.ndim == 4, f"{name}: shapes")
    require(key.shape[1:] == key_cache.shape[2:] and key_cache.shape == value_cache.shape, f"{name}: heads")
    require(slot_indices.dtype is torch.int32 and slot_indices.shape == key.shape[:1], f"{name}: slots")
    require(all(x.is_contiguous() for x in (key, value, key_cache, value_cache)), f"{name}: strided")
    slots = slot_indices.long()
    require(slots.numel() == 0 or int(slots.max()) < key_cache.shape[0] * key_cache.shape[1], f"{name}: slot outside")
    kept = slots >= 0
    key_cache.flatten(0, 1)[slots[kept]] = key[kept]
    value_cache.flatten(0, 1)[slots[kept]] = value[kept]
