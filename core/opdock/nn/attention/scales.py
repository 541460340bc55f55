"""Scales of the 8-bit caches of a whole model, found once from a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from opdock import context
from opdock.errors import OrderError, UnsupportedError
from opdock.nn.attention.forward_context import set_forward_context
from opdock.nn.attention.metadata import AttentionMetadata
from opdock.nn.attention.paged_cache import PagedKVCache, attention_layers, require_fp8

if TYPE_CHECKING:
    from opdock.nn.attention.attention import Attention
    from opdock.nn.models.decoder import CausalDecoder

_BLOCK = 16


def calculate_kv_scales(model: CausalDecoder, tokens: Sequence[int], kv_dtype: torch.dtype) -> None:
    """Set the scales of all attention layers of a model, from the keys and values that a text has in it.

    Once, before a cache of 8 bits is made; what is in such a cache already would be read over other scales.

    Args:
        model: with loaded weights; it is run op by op.
        tokens: ids of the text, as long and as ordinary as the texts to come.
        kv_dtype: of the cache.

    Raises: ConfigError for a dtype that is none of an 8-bit cache, a text that is no prompt of the model, and keys or
        values that are not finite; OrderError while a cache is bound to the model; UnsupportedError, with its name, for
        an attention layer that the text does not come through. Scales are set for all layers or for none.
    """
    from opdock.nn.generation import check_request

    require_fp8(kv_dtype)
    check_request(tokens, model.config, 1)
    layers = attention_layers(model)
    bound = [name for name, layer in layers.items() if layer.key_cache is not None]
    if bound:
        raise OrderError(
            "Scales are to be calculated, and a cache is in use.",
            who=f"layer {bound[0]}",
            why="What it holds was written over other scales.",
            remedy="close() the batch, or unbind() the cache, first.",
        )
    before = {name: (layer.k_scale.clone(), layer.v_scale.clone()) for name, layer in layers.items()}
    try:
        _set(model, layers, tokens, kv_dtype)
    except BaseException:
        for name, layer in layers.items():
            for scale, old in zip((layer.k_scale, layer.v_scale), before[name], strict=True):
                scale.copy_(old)
        raise


def _set(model: CausalDecoder, layers: Mapping[str, Attention], tokens: Sequence[int], kv_dtype: torch.dtype) -> None:
    """Run the text as a step over a paged cache, which every kind of attention can; each layer is asked as it runs."""
    seen: set[str] = set()

    def look(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        attention: Attention = layer  # type: ignore[assignment]
        attention.calculate_kv_scales(given[1], given[2], kv_dtype)
        seen.add(attention.prefix)

    count = len(tokens)
    blocks = -(-count // _BLOCK)
    hooks = [layer.register_forward_pre_hook(look) for layer in layers.values()]
    try:
        with context.platform().inference_mode():
            cache = PagedKVCache.for_model(model, num_blocks=blocks, block_size=_BLOCK)
            try:
                device = model.model.embed_tokens.weight.device
                step = AttentionMetadata.build(
                    query_lens=[count],
                    seq_lens=[count],
                    block_tables=[list(range(blocks))],
                    block_size=_BLOCK,
                    device=device,
                )
                ids = torch.tensor(list(tokens), dtype=torch.int64, device=device)
                with set_forward_context(step, cache):
                    model.forward(ids, torch.arange(count, device=device))
            finally:
                cache.unbind()
    finally:
        for hook in hooks:
            hook.remove()
    for name in layers:
        if name not in seen:
            raise UnsupportedError(
                "The text does not come through an attention layer.",
                who=f"layer {name}",
                remedy="give it its scales: layer.calculate_kv_scales(key, value, dtype).",
            )
