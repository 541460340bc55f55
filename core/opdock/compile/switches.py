"""Which fusions are on: what the host and the installed packages have, and what the configuration says."""

from __future__ import annotations

from collections.abc import Sequence

from opdock import context
from opdock.compile.fusion import Fusion, GraphFusion
from opdock.compile.fusions import BUILT_IN
from opdock.compile.offered import NAMES, offered
from opdock.config import check_switches
from opdock.errors import ConfigError, suggest
from opdock.platforms import current, hooks


def known_fusions() -> tuple[Fusion | GraphFusion, ...]:
    """Return the fusions of the active platform, of other packages, and of the host, in the order of trial."""
    manager = current.hook_manager()
    given = hooks.ask_all(manager, "compile_passes") if manager is not None else []
    known = (*(fusion for fusions in given for fusion in fusions), *BUILT_IN, *(make() for make in offered.values()))
    for fusion in known:
        for part in fusion.parts:
            for product in fusion.products:
                part.watch(product)
    return known


def fusions_in_force(switches: Sequence[str] | None) -> tuple[Fusion | GraphFusion, ...]:
    """Return the fusions that the switches leave on.

    Args:
        switches: ``all`` or ``none``, and ``+name`` or ``-name``; None takes those of the configuration of this
            process, which is ``all`` unless it says otherwise.

    Raises: ConfigError for switches that contradict one another or name no fusion.
    """
    known = known_fusions()
    wanted = list(context.installed_fusions() if switches is None else switches)
    check_switches(wanted, "fusion")
    names = {*(f.name for f in known), *NAMES}
    for switch in wanted:
        if switch[0] in "+-" and switch[1:] not in names:
            raise ConfigError(
                f"fusions has {switch!r}, but no fusion is called {switch[1:]!r}.", remedy=suggest(switch[1:], names)
            )
    on = "none" not in wanted
    return tuple(f for f in known if (on and f"-{f.name}" not in wanted) or f"+{f.name}" in wanted)
