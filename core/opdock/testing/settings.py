"""What a run of the kit is asked to do."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from opdock.discovery import metadata
from opdock.errors import ConfigError, UnknownNameError, suggest

GRIDS = ("small", "full")
TIMEOUT = {"small": 30.0, "full": 180.0}
"""Seconds that one input of a check may take: a kernel that is compiled for it counts."""

INPUTS = 10
"""A check may take so many times the seconds of an input, however many it has."""

GENERATED = {"small": 40, "full": 400}
"""Inputs drawn for a check besides the fixed ones."""


@dataclass(frozen=True)
class Settings:
    """One run.

    Args:
        plugin: name of the entry point, in ``vllm.platform_plugins`` or ``opdock.plugins``.
        grid: ``small`` is for every commit, ``full`` for a release.
        seed: of the generated inputs.
        timeout: seconds that one input of a check may take; 0 takes the grid's.
        environ: environment variables that the package needs in the child.
        device: where tensors are made, where that is not the platform's: ``cpu`` for kernels in an interpreter.
    """

    plugin: str
    grid: str = "small"
    seed: int = 0
    timeout: float = 0.0
    environ: Mapping[str, str] = field(default_factory=dict)
    device: str = ""

    def __post_init__(self) -> None:
        """Check the grid and fill in the time limit."""
        if self.grid not in GRIDS:
            raise ConfigError(f"There is no grid {self.grid!r}.", remedy=suggest(self.grid, GRIDS))
        if self.timeout < 0:
            raise ConfigError(f"A time limit of {self.timeout:g} s is not possible.", remedy="use a positive number.")
        object.__setattr__(self, "timeout", self.timeout or TIMEOUT[self.grid])

    @property
    def generated(self) -> int:
        """How many inputs are drawn for a check besides the fixed ones."""
        return GENERATED[self.grid]

    def to_dict(self) -> dict[str, Any]:
        """Return the settings for the child."""
        return {**asdict(self), "environ": dict(self.environ)}


@dataclass(frozen=True)
class Target:
    """The package that is checked: its entry point and whether it is a platform."""

    candidate: metadata.Candidate

    @property
    def is_platform(self) -> bool:
        """Whether the entry point names a platform; else it names hooks for any platform."""
        return self.candidate.group == metadata.PLATFORM_GROUP

    @property
    def distribution(self) -> str:
        """Name of the distribution."""
        return self.candidate.dist.name


def find_target(plugin: str) -> Target:
    """Return the package with an entry point, or a distribution, of that name.

    Raises: UnknownNameError if there is none, ConfigError if there are several.
    """
    groups = (metadata.PLATFORM_GROUP, metadata.HOOK_GROUP)
    known = [c for c in metadata.scan(sys.path).candidates if c.group in groups]
    found = [c for c in known if plugin in (c.name, c.dist.name)]
    if not found:
        names = [c.name for c in known]
        raise UnknownNameError(
            f"No installed package offers a plugin {plugin!r}.",
            why=f"groups looked at: {', '.join(groups)}",
            remedy=suggest(plugin, names) if names else "pip install the package first (`pip install -e .`).",
        )
    platforms = [c for c in found if c.group == metadata.PLATFORM_GROUP] or found
    if len({(c.dist.name, c.name) for c in platforms}) > 1:
        raise ConfigError(
            f"Several plugins answer to {plugin!r}.",
            why=[c.label for c in platforms],
            remedy="name the entry point, or uninstall one of them.",
        )
    return Target(platforms[0])
