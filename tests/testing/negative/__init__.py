"""Packages that are broken in one way each, as data: what the kit must find, and in which words."""

from __future__ import annotations

from negative import activation, asking, calls, configuration, hooks, layers, metadata, provider, registration
from negative.base import Negative

MODULES = (metadata, asking, activation, registration, configuration, layers, provider, calls, hooks)
NEGATIVES: tuple[Negative, ...] = tuple(each for module in MODULES for each in module.NEGATIVES)
