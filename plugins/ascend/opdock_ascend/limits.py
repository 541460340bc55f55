"""What torch_npu's attention and quantisation operators take; pure functions of metadata, "" or the reason why not."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from opdock_ascend.predicates import DEVICE, FLOATS, HALVES

MOST_HEADS = 256
"""Query heads of npu_fusion_attention."""

WIDEST_HEAD, WIDEST_PAGED_HEAD, HEAD_MULTIPLE = 768, 256, 16
"""Columns of a head: of npu_fusion_attention, of paged attention, and what those of the latter are a multiple of."""

BLOCK_SIZES = tuple(range(16, 129, 16))
"""Positions of a block of a paged cache."""

MOST_OF_A_BLOCK = 128 * 128
"""The largest product of positions of a block and columns of a head."""

MOST_SEQUENCES = 8192
"""Sequences of one call of paged attention."""

WIDEST_MATMUL = 65535
"""The longest row of either matrix of npu_quant_matmul."""

_CACHED = HALVES | {torch.int8}
_INT32 = torch.int32


def reshape_and_cache(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> str:
    """Return why ``_npu_reshape_and_cache`` does not take these arguments."""
    if key.device.type != DEVICE:
        return _elsewhere("key", key)
    if key.dtype not in _CACHED:
        return f"no operator for key of {key.dtype}"
    for name, tensor in (("value", value), ("key_cache", key_cache), ("value_cache", value_cache)):
        if tensor.dtype is not key.dtype:
            return f"key of {key.dtype} and {name} of {tensor.dtype}: the operator copies, it does not convert"
        if tensor.device != key.device:
            return f"{name} is on {tensor.device} and key on {key.device}"
    if key.ndim != 3 or value.shape != key.shape or not (key.is_contiguous() and value.is_contiguous()):
        return f"key {tuple(key.shape)} and value {tuple(value.shape)} are not dense rows of heads of one shape"
    if slots.dtype is not _INT32 or slots.device != key.device or slots.shape != key.shape[:1]:
        return f"slots of {slots.dtype}, {tuple(slots.shape)}, on {slots.device}: int32, one a token, beside key"
    return _refuse_caches(key_cache, value_cache, key.shape[1], key.shape[2])


def paged_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, block_table: Tensor, context_lens: Tensor, out: Tensor
) -> str:
    """Return why ``_npu_paged_attention`` does not take these arguments."""
    if query.device.type != DEVICE:
        return _elsewhere("query", query)
    if query.dtype not in HALVES:
        return f"no operator for query of {query.dtype}"
    for name, tensor in (("key_cache", key_cache), ("value_cache", value_cache), ("out", out)):
        if tensor.dtype is not query.dtype or tensor.device != query.device:
            return f"{name} of {tensor.dtype} on {tensor.device}, query of {query.dtype} on {query.device}"
    if query.ndim != 3 or out.shape != query.shape or not (query.is_contiguous() and out.is_contiguous()):
        return f"query {tuple(query.shape)} and out {tuple(out.shape)} are not dense rows of heads of one shape"
    if block_table.dtype is not _INT32 or block_table.device != query.device or not block_table.is_contiguous():
        return f"block_table of {block_table.dtype} on {block_table.device}: int32, dense, beside query"
    if context_lens.dtype is not _INT32 or context_lens.device.type != "cpu":
        return f"context_lens of {context_lens.dtype} on {context_lens.device}: int32, on the host"
    if not len(query) == len(block_table) == len(context_lens):
        return f"{len(query)} queries, {len(block_table)} rows of blocks, {len(context_lens)} lengths: one a sequence"
    if len(query) > MOST_SEQUENCES:
        return f"{len(query)} sequences: the operator takes up to {MOST_SEQUENCES}"
    refused = refuse_paged_head(query.shape[2]) or _refuse_caches(key_cache, value_cache, None, query.shape[2])
    if refused:
        return refused
    return _refuse_groups(query.shape[1], key_cache.shape[2])


def causal_attention(
    query: Tensor, key: Tensor, value: Tensor, query_ends: Sequence[int], key_ends: Sequence[int]
) -> str:
    """Return why ``npu_fusion_attention`` does not take these arguments in its layout TND."""
    if query.device.type != DEVICE:
        return _elsewhere("query", query)
    if query.dtype not in FLOATS:
        return f"no operator for query of {query.dtype}"
    for name, tensor in (("key", key), ("value", value)):
        if tensor.dtype is not query.dtype or tensor.device != query.device:
            return f"{name} of {tensor.dtype} on {tensor.device}, query of {query.dtype} on {query.device}"
    if query.ndim != 3 or key.ndim != 3 or key.shape != value.shape or key.shape[2] != query.shape[2]:
        return f"query {tuple(query.shape)}, key {tuple(key.shape)} and value {tuple(value.shape)} do not fit"
    if query.shape[2] > WIDEST_HEAD:
        return f"heads of {query.shape[2]} columns: the operator takes up to {WIDEST_HEAD}"
    if not query_ends or len(query_ends) != len(key_ends):
        return f"{len(query_ends)} ends of queries and {len(key_ends)} of keys: one of each a sequence"
    if query_ends[-1] != query.shape[0] or key_ends[-1] != key.shape[0]:
        return f"the last ends {query_ends[-1]}, {key_ends[-1]} are not the rows {query.shape[0]}, {key.shape[0]}"
    if not query.numel() or not key.numel():
        return "the operator takes no tensor without elements"
    return _refuse_groups(query.shape[1], key.shape[1])


def int8_linear(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> str:
    """Return why ``npu_dynamic_quant`` and ``npu_quant_matmul`` do not take these arguments."""
    if x.device.type != DEVICE:
        return _elsewhere("x", x)
    if x.dtype not in HALVES:
        return f"no operator for x of {x.dtype}"
    if weight.dtype is not torch.int8 or scale.dtype is not torch.float32:
        return f"weight of {weight.dtype} and scale of {scale.dtype}: int8 and float32"
    if x.ndim != 2 or weight.ndim != 2 or x.shape[1] != weight.shape[0]:
        return f"x {tuple(x.shape)} and weight {tuple(weight.shape)} do not fit: (tokens, inputs), (inputs, outputs)"
    if max(weight.shape) > WIDEST_MATMUL:
        return f"weight {tuple(weight.shape)}: the operator takes rows of up to {WIDEST_MATMUL}"
    outputs = weight.shape[1:]
    if scale.shape != outputs or (bias is not None and (bias.shape != outputs or bias.dtype is not torch.float32)):
        return f"scale and bias are not float32, one for each of {outputs[0]} outputs"
    if any(t.device != x.device for t in (weight, scale, *([] if bias is None else [bias]))):
        return "the arguments are on several devices"
    return "" if x.numel() else "the operator takes no tensor without elements"


def refuse_paged_head(size: int) -> str:
    """Return why paged attention does not take heads of this size."""
    fits = size % HEAD_MULTIPLE == 0 and size <= WIDEST_PAGED_HEAD
    return "" if fits else f"heads of {size}: the operator takes multiples of {HEAD_MULTIPLE} up to {WIDEST_PAGED_HEAD}"


def refuse_block(block_size: int, head_size: int) -> str:
    """Return why paged attention does not take blocks of this size of heads of this size."""
    if block_size * head_size <= MOST_OF_A_BLOCK:
        return ""
    return f"blocks of {block_size} positions of heads of {head_size}: the operator takes {MOST_OF_A_BLOCK} in all"


def _refuse_caches(key_cache: Tensor, value_cache: Tensor, kv_heads: int | None, head_size: int) -> str:
    shape = tuple(key_cache.shape)
    if len(shape) != 4 or value_cache.shape != key_cache.shape:
        return f"caches {shape} and {tuple(value_cache.shape)} are not blocks of one shape"
    if shape[3] != head_size or (kv_heads is not None and shape[2] != kv_heads):
        return f"caches {shape} do not fit heads of {head_size}"
    if shape[1] not in BLOCK_SIZES:
        return f"blocks of {shape[1]} positions: the operator takes multiples of 16 up to {BLOCK_SIZES[-1]}"
    if not (key_cache.is_contiguous() and value_cache.is_contiguous()):
        return "a cache is not dense"
    return refuse_block(shape[1], shape[3])


def _refuse_groups(heads: int, kv_heads: int) -> str:
    if heads > MOST_HEADS or heads % kv_heads:
        return f"{heads} query heads over {kv_heads}: a multiple, up to {MOST_HEADS}"
    return ""


def _elsewhere(name: str, x: Tensor) -> str:
    return f"{name} is on {x.device}, and the operator runs on {DEVICE}"
