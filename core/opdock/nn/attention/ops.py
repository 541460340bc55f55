"""The attention ops of torch: one node each in a compiled graph, which find their layer by its name.

The caches that they write are arguments, so that their mutation is declared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.library import Library

from opdock.compile.offered import offered
from opdock.nn.attention.forward_context import get_forward_context

if TYPE_CHECKING:
    from opdock.compile.fusion import GraphFusion

_library = Library("opdock", "FRAGMENT")


def unified_kv_cache_update(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, layer_name: str
) -> None:
    """Write the step's keys and values to their slots of the paged cache.

    Args:
        key: (num_tokens, num_kv_heads, head_size).
        value: likewise.
        key_cache: (num_blocks, block_size, num_kv_heads, head_size); written.
        value_cache: likewise; written.
        layer_name: of the layer in the forward context.
    """
    layer, metadata = get_forward_context().step(layer_name, key.shape[0], key_cache)
    layer.impl.update_cache(key, value, key_cache, value_cache, metadata)


def unified_attention_with_output(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    layer_name: str,
    key_cache: Tensor,
    value_cache: Tensor,
    output_scale: Tensor | None = None,
    output_block_scale: Tensor | None = None,
    update_cache: bool = True,  # noqa: FBT001, FBT002 - a parameter of a torch op
) -> None:
    """Attend each new token to the cached positions of its request up to itself.

    Args:
        query: (num_tokens, num_heads, head_size).
        key: (num_tokens, num_kv_heads, head_size).
        value: likewise.
        output: (num_tokens, num_heads, head_size); written. Rows of no request become zeros.
        layer_name: of the layer in the forward context.
        key_cache: (num_blocks, block_size, num_kv_heads, head_size); written with ``update_cache``.
        value_cache: likewise.
        output_scale: not supported yet; None.
        output_block_scale: not supported yet; None.
        update_cache: whether the step's keys and values are still to be written.
    """
    layer, metadata = get_forward_context().step(layer_name, query.shape[0], key_cache)
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        raise layer.wrong_rows(query, key, value)
    layer.impl.check_output_scales(output_scale, output_block_scale)
    if update_cache:
        layer.impl.update_cache(key, value, key_cache, value_cache, metadata)
    layer.impl.forward(query, key, value, key_cache, value_cache, metadata, output)


def unified_rotary_and_kv_cache_update(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    is_neox: bool,  # noqa: FBT001 - a parameter of a torch op
    layer_name: str,
) -> None:
    """Rotate queries and keys, and write the step's rotated keys and its values to their slots of the paged cache.

    What the fusion ``rotary_and_cache`` puts in the place of ``rotary_embedding`` and the update of the cache.

    Args:
        positions: (num_tokens,) integers.
        query: (num_tokens, num_heads * head_size) or (num_tokens, num_heads, head_size); written.
        key: likewise with num_kv_heads; written.
        value: (num_tokens, num_kv_heads, head_size).
        key_cache: (num_blocks, block_size, num_kv_heads, head_size); written.
        value_cache: likewise; written.
        cos_sin_cache: (max_position, rot_dim), cosines, then sines.
        head_size: columns of a head.
        is_neox: whether the pairs are halves of a head, else they are neighbours.
        layer_name: of the layer in the forward context.
    """
    layer, metadata = get_forward_context().step(layer_name, key.shape[0], key_cache)
    layer.impl.rotate_and_update_cache(
        positions, query, key, value, key_cache, value_cache, metadata, head_size, cos_sin_cache, is_neox
    )


def _define() -> None:
    cache = "Tensor(b!) key_cache, Tensor(c!) value_cache"
    schemas = {
        "unified_kv_cache_update": "(Tensor key, Tensor value, Tensor(b!) key_cache, Tensor(c!) value_cache, "
        "str layer_name) -> ()",
        "unified_attention_with_output": "(Tensor query, Tensor key, Tensor value, Tensor(a!) output, str layer_name, "
        f"{cache}, Tensor? output_scale=None, Tensor? output_block_scale=None, bool update_cache=True) -> ()",
        "unified_rotary_and_kv_cache_update": "(Tensor positions, Tensor(a!) query, Tensor(d!) key, Tensor value, "
        f"{cache}, Tensor cos_sin_cache, int head_size, bool is_neox, str layer_name) -> ()",
    }
    for name, schema in schemas.items():
        # What a step reads of its metadata is no input of the graph: a graph of Inductor's own must leave the op out.
        tags = (torch.Tag.needs_fixed_stride_order, torch.Tag.cudagraph_unsafe)
        _library.define(name + schema, tags=tags)
        _library.impl(name, globals()[name], "CompositeExplicitAutograd")
        _library._register_fake(name, lambda *_, **__: None)


def _fusion() -> GraphFusion:
    from opdock.nn.attention.fusion import RotaryAndCache

    return RotaryAndCache()


_define()
offered["rotary_and_cache"] = _fusion
