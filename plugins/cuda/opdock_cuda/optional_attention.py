"""Attention by libraries that a user installs beside this package: what the backends over them share.

No library is imported before a layer runs on it; whether it is there is read from the metadata of its distribution.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module, metadata
from itertools import pairwise
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from opdock.errors import UnsupportedError
from opdock.nn.attention import AttentionBackend, AttentionImpl, AttentionMetadata, AttentionSelectorConfig
from opdock.nn.attention.impl import writes_rows
from opdock.nn.kernels import triton

if TYPE_CHECKING:
    from opdock.nn.attention import Attention, AttentionSpec
    from opdock.platforms.interface import DeviceCapability


@dataclass(frozen=True)
class Library:
    """A library by its names.

    Attributes:
        module: what is imported.
        distribution: what pip installs.
        minimum: the first version that is used.
    """

    module: str
    distribution: str
    minimum: tuple[int, ...]

    def why_not(self) -> str:
        """Return why it cannot be used, "" if it is installed and not too old; imports nothing."""
        wanted = ".".join(map(str, self.minimum))
        try:
            found = metadata.version(self.distribution)
        except metadata.PackageNotFoundError:
            return f'not installed: pip install "{self.distribution}>={wanted}"'
        numbers = re.match(r"\d+(\.\d+)*", found)
        if numbers is None or tuple(map(int, numbers[0].split("."))) < self.minimum:
            return f'{self.distribution} {found} is too old: pip install "{self.distribution}>={wanted}"'
        return ""

    def load(self, layer_name: str) -> ModuleType:
        """Import and return it; UnsupportedError, naming the layer, if that fails."""
        try:
            return import_module(self.module)
        except (ImportError, OSError, RuntimeError, AttributeError) as err:
            raise UnsupportedError(
                f"{self.module} cannot be imported.",
                who=f"layer {layer_name}",
                why=f"{type(err).__name__}: {err}",
                remedy=f"install a {self.distribution} built for this PyTorch, or ask for no attention backend.",
            ) from err


class LibraryImpl(AttentionImpl):
    """Writes the cache by opdock's Triton kernel where Triton is usable, else by torch."""

    def __init__(self, spec: AttentionSpec, layer: Attention) -> None:
        """Load Triton."""
        super().__init__(spec, layer)
        self._store = None
        if not triton.why_not():
            from opdock.nn.kernels.triton.attention_cache import reshape_and_cache

            self._store = reshape_and_cache

    @writes_rows
    def update_cache(
        self, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata
    ) -> None:
        """Write both; see the base."""
        if self._store is None or not key.is_cuda:
            super().update_cache(key, value, key_cache, value_cache, metadata)
            return
        scales = self.layer.k_scale, self.layer.v_scale
        self._store(key, value, key_cache, value_cache, metadata.slot_mapping, *scales)


class LibraryBackend(AttentionBackend):
    """A backend over a library; it is taken only where it is asked for by name."""

    library: ClassVar[Library]
    capability: ClassVar[tuple[int, int]] = (8, 0)
    """The first compute capability."""
    because: ClassVar[dict[str, str]] = {}
    """More words for reasons of the base class."""
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", "float16", "bfloat16"]

    @classmethod
    def supports_sliding_window(cls) -> bool:
        """Return True."""
        return True

    @classmethod
    def supports_compute_capability(cls, capability: DeviceCapability | None) -> bool:
        """Return whether the library has kernels for it."""
        return capability is None or capability >= cls.capability

    @classmethod
    def supports_combination(
        cls, config: AttentionSelectorConfig, device_capability: DeviceCapability | None
    ) -> str | None:
        """Return why cache and queries of two dtypes do not go together, or None."""
        kept, name = config.kv_cache_dtype, str(config.dtype).removeprefix("torch.")
        if kept in ("float16", "bfloat16") and kept != name:
            return f"a cache of {kept} beside queries of {name} not supported"
        return None

    @classmethod
    def why_not_here(cls, device_type: str) -> str | None:
        """Return why it does not run on devices of this type: the library is for others, or not there."""
        return (cls.library.why_not() or None) if device_type == "cuda" else f"no kernels for {device_type} tensors"

    @classmethod
    def validate_configuration(
        cls, config: AttentionSelectorConfig, device_capability: DeviceCapability | None = None
    ) -> list[str]:
        """Return every reason why it does not fit; first, that the library is not there."""
        absent = cls.library.why_not()
        reasons = [absent] if absent else []
        for reason in super().validate_configuration(config, device_capability):
            more = cls.because.get(reason)
            reasons.append(f"{reason}: {more}" if more else reason)
        return list(dict.fromkeys(reasons))


def lens_of(step: AttentionMetadata) -> tuple[list[int], list[int]]:
    """Return new tokens and positions of each request; reads the device where the host does not know them."""
    if step.query_lens is not None and step.context_lens is not None:
        totals = [new + before for new, before in zip(step.query_lens, step.context_lens, strict=True)]
        return list(step.query_lens), totals
    starts = step.query_start_loc.tolist()
    return [end - start for start, end in pairwise(starts)], step.seq_lens.tolist()
