"""Random programs for the compile passes: ``generate`` makes one from a seed, ``check`` says what went wrong.

    with registered():
        outcome = check(generate(7))

The folder above has to be on ``sys.path``; the tests and ``benchmarks/fuzz_compile.py`` put it there.
"""

from fuzz.checking import Outcome, check
from fuzz.generator import generate
from fuzz.ops import registered
from fuzz.program import Program
from fuzz.shrinking import shrink

__all__ = ["Outcome", "Program", "check", "generate", "registered", "shrink"]
