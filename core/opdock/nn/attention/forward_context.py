"""What the attention ops of a step find by the name of their layer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opdock.errors import OrderError, UnknownNameError, suggest

if TYPE_CHECKING:
    from opdock.nn.attention.attention import Attention
    from opdock.nn.attention.metadata import AttentionMetadata
    from opdock.nn.attention.paged_cache import PagedKVCache


@dataclass(frozen=True, eq=False)
class ForwardContext:
    """One step: its metadata, for all layers or by layer name, and the layers."""

    attn_metadata: AttentionMetadata | Mapping[str, AttentionMetadata]
    layers: Mapping[str, Attention]

    def of(self, layer_name: str) -> tuple[Attention, AttentionMetadata]:
        """Return a layer and the metadata of its step; UnknownNameError for a name that is not there."""
        layer = self.layers.get(layer_name)
        if layer is None:
            raise UnknownNameError(
                f"No attention layer of this step is called {layer_name!r}.",
                remedy=suggest(layer_name, self.layers),
            )
        found = self.attn_metadata
        if isinstance(found, Mapping):
            if layer_name not in found:
                raise UnknownNameError(
                    f"The step has no metadata for the layer {layer_name!r}.", remedy=suggest(layer_name, found)
                )
            found = found[layer_name]
        return layer, found


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
    """
    layers = cache if isinstance(cache, Mapping) else cache.layers
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
