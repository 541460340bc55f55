"""Faults seeded into the correct package of ``package.py``, one edit each, and correct changes as controls.

They were written from the contract of ops, layers and platforms, and from what goes wrong in kernels, without regard
to what the conformance kit looks at. The folder above has to be on ``sys.path``.
"""

from __future__ import annotations

from mutants.equivalent import OUT_OF_REACH, REASONS
from mutants.kinds import Mutant, control, mutant
from mutants.registry import CONTROLS, FAULTS, files_of, named

__all__ = ["CONTROLS", "FAULTS", "OUT_OF_REACH", "REASONS", "Mutant", "control", "files_of", "mutant", "named"]
