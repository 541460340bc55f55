"""Fusions of parts of opdock that this package does not import: they offer them when they are imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opdock.compile.fusion import GraphFusion

offered: dict[str, Callable[[], GraphFusion]] = {}
"""By name; called when a graph is compiled."""
