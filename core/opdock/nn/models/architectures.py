"""The registry of architectures: which decoder a checkpoint's own name stands for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opdock.errors import CheckpointError, suggest
from opdock.journal import Registry
from opdock.nn.models.config import ModelConfig

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Architecture:
    """One kind of model.

    Args:
        name: as ``architectures`` in a config.json says it.
        model: ``module:Class``; the class takes a ModelConfig.
        from_hf: makes the ModelConfig from (config.json as a mapping, its path).
        gguf: as ``general.architecture`` in a GGUF file says it, or None.
        from_gguf: makes the ModelConfig from (metadata, names of the tensors, path), or None.
        permuted_qk: whether GGUF files of this kind store rows i and i + d/2 of q and k side by side.
    """

    name: str
    model: str
    from_hf: Callable[[Mapping[str, Any], str], ModelConfig]
    gguf: str | None = None
    from_gguf: Callable[[Mapping[str, Any], frozenset[str], str], ModelConfig] | None = None
    permuted_qk: bool = False

    def build(self, config: ModelConfig) -> nn.Module:
        """Import the class and build the model, weights uninitialised."""
        module, _, cls = self.model.partition(":")
        built: nn.Module = getattr(importlib.import_module(module), cls)(config)
        return built


architectures: Registry[Architecture] = Registry("architecture")


def find_architecture(name: str, source: str) -> Architecture:
    """Return the architecture that a config.json names; CheckpointError with near matches if none."""
    if name in architectures.view:
        return architectures.view[name]
    raise _unknown(name, list(architectures.view), source)


def find_gguf_architecture(name: str, source: str) -> Architecture:
    """Return the architecture that a GGUF file names; CheckpointError with near matches if none."""
    known = {a.gguf: a for a in architectures.view.values() if a.gguf is not None}
    if name in known:
        return known[name]
    raise _unknown(name, list(known), source)


def _unknown(name: str, known: list[str], source: str) -> CheckpointError:
    return CheckpointError(
        f"The model's architecture {name!r} is unknown.",
        who=source,
        why=suggest(name, known),
        remedy="use a model of a known architecture, or register this one in "
        "opdock.nn.models.architectures.architectures.",
    )
