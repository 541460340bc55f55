"""What the attention ops of a step find by the name of their layer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from opdock import env
from opdock.errors import ConfigError, OrderError, UnknownNameError, suggest
from opdock.nn.attention.metadata import AttentionMetadata
from opdock.nn.attention.paged_cache import not_bound

if TYPE_CHECKING:
    from torch import Tensor

    from opdock.nn.attention.attention import Attention
    from opdock.nn.attention.paged_cache import PagedKVCache


@dataclass(frozen=True, eq=False)
class ForwardContext:
    """One step: its metadata, for all layers or by layer name, and the layers.

    Attributes:
        attn_metadata: of the step.
        layers: by name.
        strict: whether every slot and block is looked at: ``OPDOCK_STRICT`` as it stood when the step began.
    """

    attn_metadata: AttentionMetadata | Mapping[str, AttentionMetadata]
    layers: Mapping[str, Attention]
    strict: bool = field(default_factory=env.strict)
    _fitted: list[tuple[AttentionMetadata, int, int]] = field(default_factory=list)

    def step(self, layer_name: str, rows: int, key_cache: Tensor) -> tuple[Attention, AttentionMetadata]:
        """Return a layer and its metadata, once they fit ``rows`` tokens and the cache.

        Nothing is read from the device, but with ``OPDOCK_STRICT=1``: then every slot and block is looked at too.

        Raises: ConfigError naming the layer.
        """
        layer, metadata = self.of(layer_name)
        blocks, block_size = key_cache.shape[:2]
        if self._fitted and not self.strict:  # layers are alike: what fits the first fits the next
            fitted, tokens, size = self._fitted[0]
            if fitted is metadata and tokens == rows and size == block_size:
                return layer, metadata
        if rows != metadata.num_tokens or rows != metadata.slot_mapping.shape[0]:
            raise ConfigError(
                f"The step has {metadata.num_tokens} rows and {metadata.slot_mapping.shape[0]} slots, and "
                f"the layer is given {rows} rows.",
                who=f"layer {layer_name}",
                remedy="make the metadata for the tokens of this step, padding rows included.",
            )
        if metadata.block_size not in (None, block_size):
            raise ConfigError(
                f"The step counts slots in blocks of {metadata.block_size}, and the cache has blocks of {block_size}.",
                who=f"layer {layer_name}",
                remedy=f"AttentionMetadata.build(…, block_size={block_size}).",
            )
        fits = metadata.block_table.shape[1] * block_size
        if metadata.max_seq_len > fits:
            raise ConfigError(
                "The block table is too short for the step.",
                who=f"layer {layer_name}",
                why=f"{metadata.block_table.shape[1]} blocks of {block_size} hold {fits} positions, and max_seq_len "
                f"is {metadata.max_seq_len}.",
                remedy=f"give it {-(-metadata.max_seq_len // block_size)} columns.",
            )
        if self.strict and not (key_cache.is_cuda and torch.cuda.is_current_stream_capturing()):
            _check_places(layer_name, metadata, blocks, block_size)
        self._fitted[:] = [(metadata, rows, block_size)]
        return layer, metadata

    def of(self, layer_name: str) -> tuple[Attention, AttentionMetadata]:
        """Return a layer and the metadata of its step; UnknownNameError for a name that is not there."""
        layer = self.layers.get(layer_name)
        if layer is None:
            raise UnknownNameError(
                f"No attention layer of this step is called {layer_name!r}.",
                remedy=suggest(layer_name, self.layers),
            )
        found = self.attn_metadata
        if type(found) is not AttentionMetadata and isinstance(found, Mapping):
            if layer_name not in found:
                raise UnknownNameError(
                    f"The step has no metadata for the layer {layer_name!r}.", remedy=suggest(layer_name, found)
                )
            found = found[layer_name]
        return layer, found


def _check_places(layer_name: str, metadata: AttentionMetadata, blocks: int, block_size: int) -> None:
    """Raise ConfigError for a slot or a block that the cache does not have, or is written twice; reads the device."""
    slots, lens = metadata.slot_mapping, metadata.seq_lens.tolist()
    if slots.numel() and not -1 <= int(slots.min()) <= int(slots.max()) < blocks * block_size:
        raise ConfigError(
            f"A slot between {int(slots.min())} and {int(slots.max())} is none of the cache.",
            who=f"layer {layer_name}",
            why=f"Its slots are 0 to {blocks * block_size - 1}, and -1 is padding.",
            remedy="make slots of the blocks that the allocator gave.",
        )
    kept = slots[slots >= 0]
    found, times = kept.unique(return_counts=True)
    if found.numel() < kept.numel():
        slot = int(found[times.argmax()])
        raise ConfigError(
            f"Two tokens of the step write to the slot {slot}, of block {slot // block_size}.",
            who=f"layer {layer_name}",
            why="One of the two keys and values would be lost, and the tokens behind it wrong.",
            remedy="give each request blocks of its own to write to; a prefix that is only read may be shared.",
        )
    for request, (table, length) in enumerate(zip(metadata.block_table.tolist(), lens, strict=True)):
        if length > len(table) * block_size:
            raise ConfigError(
                f"Request {request} has {length} positions, and its block table holds {len(table) * block_size}.",
                who=f"layer {layer_name}",
                remedy="give the block table more columns.",
            )
        used = table[: -(-length // block_size)]
        wrong = [b for b in used if not 0 <= b < blocks]
        if wrong:
            raise ConfigError(
                f"Request {request} has the block {wrong[0]}, which is none of the cache.",
                who=f"layer {layer_name}",
                why=f"Its blocks are 0 to {blocks - 1}.",
                remedy="use the blocks that the allocator gave.",
            )


_current: ContextVar[ForwardContext | None] = ContextVar("opdock.forward_context", default=None)


@contextlib.contextmanager
def set_forward_context(
    attn_metadata: AttentionMetadata | Mapping[str, AttentionMetadata],
    cache: PagedKVCache | Mapping[str, Attention],
) -> Iterator[ForwardContext]:
    """Run the forward inside as one step of a batch.

    Args:
        attn_metadata: of the step, for all layers, or by layer name.
        cache: the cache whose layers run, or these layers by name.

    Raises: OrderError, with the layer's name, for a layer that no cache, or another one, is bound to.
    """
    if isinstance(cache, Mapping):
        layers = cache
        for name, layer in layers.items():
            if layer.key_cache is None:
                raise not_bound(name, layer)
    else:
        layers = cache.layers
        cache.require_bound()
    token = _current.set(ForwardContext(attn_metadata, layers))
    try:
        yield _current.get()  # type: ignore[misc]
    finally:
        _current.reset(token)


def get_forward_context() -> ForwardContext:
    """Return the step in force; OrderError outside ``set_forward_context``."""
    found = _current.get()
    if found is None:
        raise OrderError(
            "Attention over a paged cache ran outside a step.",
            why="The layer has a paged cache, and nothing says which requests the tokens belong to.",
            remedy="call the model inside `with set_forward_context(metadata, cache):`.",
        )
    return found
