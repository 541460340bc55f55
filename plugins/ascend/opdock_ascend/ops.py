"""torch_npu's operators that serve no IR op, checked: what they do not take is one error, before anything is launched.

Importing this module loads neither torch nor torch_npu's kernels; calling what is in it does.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from opdock.errors import OpdockError
from opdock_ascend import limits

CAUSAL = 3
"""The sparse_mode of npu_fusion_attention in which the last query sees the last key, and earlier ones less."""

COMPRESSED = 2048
"""Rows and columns of the mask that the causal modes take, however long the sequences are."""


class ArgumentError(OpdockError, ValueError):
    """An operator does not take these arguments."""


def reshape_and_cache_(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """Copy each token's key and value into its slot of a paged cache.

    Shapes: key, value (num_tokens, num_kv_heads, head_size); key_cache, value_cache (num_blocks, block_size,
        num_kv_heads, head_size), dense; slots (num_tokens,), block * block_size + offset.
    Dtypes: float16, bfloat16 or int8, the same for all; slots int32.
    Mutates: the caches.
    Raises: ArgumentError if the operator does not take them.
    """
    _check("reshape_and_cache_", limits.reshape_and_cache(key, value, key_cache, value_cache, slots))
    torch.ops.atb._npu_reshape_and_cache.default(key, value, key_cache, value_cache, slots)


def paged_attention_(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    scale: float,
    block_table: Tensor,
    context_lens: Tensor,
    out: Tensor,
) -> None:
    """Write to ``out`` the attention of one query of each sequence over its cached keys.

    Shapes: query, out (sequences, num_heads, head_size), dense; caches (num_blocks, block_size, num_kv_heads,
        head_size), dense; block_table (sequences, blocks); context_lens (sequences,), positions of each, with this one.
    Dtypes: query, caches and out float16 or bfloat16, the same; block_table and context_lens int32.
    Args: scale, of the scores, no unit. context_lens is on the host: the operator plans its work from it.
    Mutates: out.
    Raises: ArgumentError if the operator does not take them.
    """
    refused = limits.paged_attention(query, key_cache, value_cache, block_table, context_lens, out)
    _check("paged_attention_", refused)
    heads, kv_heads = query.shape[1], key_cache.shape[2]
    torch.ops.atb._npu_paged_attention.default(
        query, key_cache, value_cache, kv_heads, heads, scale, block_table, context_lens, out
    )


def causal_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, query_ends: Sequence[int], key_ends: Sequence[int]
) -> Tensor:
    """Return the attention of the last positions of each sequence over its keys, sequences one behind the other.

    Shapes: query (tokens, num_heads, head_size); key, value (positions, num_kv_heads, head_size); returns like query.
    Dtypes: float16, bfloat16 or float32, the same for all.
    Args: scale, of the scores, no unit; query_ends, key_ends, the row behind the last one of each sequence.
    Mutates: nothing.
    Raises: ArgumentError if the operator does not take them.
    """
    _check("causal_attention", limits.causal_attention(query, key, value, query_ends, key_ends))
    found: Tensor = torch.ops.npu.npu_fusion_attention.default(
        query.contiguous(),
        key.contiguous(),
        value.contiguous(),
        query.shape[1],
        "TND",
        atten_mask=causal_mask(query.device),
        scale=scale,
        actual_seq_qlen=list(query_ends),
        actual_seq_kvlen=list(key_ends),
        sparse_mode=CAUSAL,
    )[0]
    return found


def int8_linear(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias, with rows of x quantised to int8 as they come.

    Shapes: x (tokens, inputs); weight (inputs, outputs), transposed as the operator wants it; scale and bias
        (outputs,); returns (tokens, outputs).
    Dtypes: x float16 or bfloat16, as is the result; weight int8; scale and bias float32.
    Args: scale, of each output's weights.
    Mutates: nothing.
    Raises: ArgumentError if the operators do not take them.
    """
    _check("int8_linear", limits.int8_linear(x, weight, scale, bias))
    npu: Any = torch.ops.npu
    rows, row_scale = npu.npu_dynamic_quant.default(x)
    made: Tensor = npu.npu_quant_matmul.default(
        rows, weight, scale, pertoken_scale=row_scale, bias=bias, output_dtype=_number(x.dtype)
    )
    return made


@functools.lru_cache(maxsize=16)
def causal_mask(device: torch.device) -> Tensor:
    """Return the mask of the causal modes on a device, True above the diagonal; one for all calls."""
    return torch.ones(COMPRESSED, COMPRESSED, dtype=torch.bool, device=device).triu_(1)


def _number(dtype: torch.dtype) -> int:
    """Return a dtype as the operators' schemas take it: the number of its ScalarType."""
    return {torch.float16: 5, torch.bfloat16: 15}[dtype]


def _check(name: str, refused: str) -> None:
    if refused:
        raise ArgumentError(
            f"opdock_ascend.ops.{name}: {refused}.",
            why="The operator of torch_npu does not take these arguments.",
            remedy="the docstring of the function has what it takes.",
        )
