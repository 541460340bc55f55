"""What a seeded fault is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One change of the correct package.

    Args:
        name: of the mutant.
        edits: (file, old text, new text); the old text is in the file once.
        what: the fault, or for a control what is different and yet correct, in one line.
        harmless: whether it is a control, which nothing may be found wrong with.
    """

    name: str
    edits: tuple[tuple[str, str, str], ...]
    what: str
    harmless: bool = False


def mutant(name: str, file: str, old: str, new: str, what: str) -> Mutant:
    """Return a fault of one edit."""
    return Mutant(name, ((file, old, new),), what)


def control(name: str, file: str, old: str, new: str, what: str) -> Mutant:
    """Return a correct change of one edit."""
    return Mutant(name, ((file, old, new),), what, harmless=True)
