"""Fusions of parts of opdock that this package does not import: they offer them when they are imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opdock.compile.fusion import GraphFusion

NAMES = ("rotary_and_cache",)
"""Of all of them: a switch may name one whose part is not imported yet, or never."""

offered: dict[str, Callable[[], GraphFusion]] = {}
"""By name; called when a graph is compiled."""
