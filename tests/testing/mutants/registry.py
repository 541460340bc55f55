"""All of them, by area."""

from __future__ import annotations

from package import changed

from mutants import (
    activation,
    attention,
    controls,
    layers,
    memory,
    norm_sizes,
    norm_values,
    platform,
    rotary,
    torch_ops,
)
from mutants.kinds import Mutant

FAULTS: tuple[Mutant, ...] = (
    *norm_values.MUTANTS,
    *norm_sizes.MUTANTS,
    *activation.MUTANTS,
    *rotary.MUTANTS,
    *memory.MUTANTS,
    *torch_ops.MUTANTS,
    *platform.MUTANTS,
    *layers.MUTANTS,
    *attention.MUTANTS,
)
CONTROLS: tuple[Mutant, ...] = controls.MUTANTS


def files_of(mutant: Mutant) -> dict[str, str]:
    """Return the package's files with the change made; ValueError if it does not apply."""
    return changed(*mutant.edits)


def named(name: str) -> Mutant:
    """Return the fault or control of that name; KeyError if there is none."""
    return {each.name: each for each in (*FAULTS, *CONTROLS)}[name]
