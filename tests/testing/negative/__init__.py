"""Packages that are broken in one way each, as data: what the kit must find, and in which words."""

from __future__ import annotations

from negative import activation, asking, configuration, hooks, layers, metadata, provider, registration
from negative.base import Negative

MODULES = (metadata, asking, activation, registration, configuration, layers, provider, hooks)
NEGATIVES: tuple[Negative, ...] = tuple(each for module in MODULES for each in module.NEGATIVES)
