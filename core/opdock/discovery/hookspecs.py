"""The hooks that many packages may implement, through the entry-point group ``opdock.plugins``.

An implementation is a module or an object with functions marked ``@opdock.hookimpl``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from opdock.compile.fusion import Fusion
    from opdock.compile.report import GraphReport
    from opdock.platforms.interface import Platform
    from opdock.platforms.selection import Selection

hookspec = pluggy.HookspecMarker("opdock")
hookimpl = pluggy.HookimplMarker("opdock")


@hookspec
def import_kernels() -> None:
    """Load extensions that define torch ops; after the platform's own."""


@hookspec
def import_ir_kernels() -> None:
    """Import the modules that register IR providers; after every ``import_kernels``."""


@hookspec
def register_oot() -> None:
    """Register replacements of op classes; after every ``import_ir_kernels``."""


@hookspec
def default_ir_op_priority(platform: Platform, config: Any) -> dict[str, list[str]] | None:
    """Return, for some IR ops, providers to try before the platform's own order."""


@hookspec
def platform_selected(platform: Platform, selection: Selection) -> None:
    """Observe that the platform is active; called once."""


@hookspec
def provider_chosen(op: str, providers: tuple[str, ...]) -> None:
    """Observe that an order of providers was put in force for an IR op; never called while ops run."""


@hookspec
def compile_passes() -> list[Fusion] | None:
    """Return fusions to try in compiled code before the host's own; asked whenever a graph is compiled."""


@hookspec
def graph_lowered(report: GraphReport) -> None:
    """Observe what the passes did to a graph; called once for each that is compiled and not found in a cache."""
