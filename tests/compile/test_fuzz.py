"""Random programs keep their meaning through the passes; ``fuzz`` beside this file makes them.

``OPDOCK_FUZZ=5000 pytest tests/compile/test_fuzz.py`` runs more than the default, and ``OPDOCK_FUZZ_SEED=7`` starts
elsewhere: a failure names its seed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from fuzz import Outcome, Program, check, generate, registered, shrink
from fuzz.mutants import MUTANTS

COUNT = int(os.environ.get("OPDOCK_FUZZ", "300"))
FIRST = int(os.environ.get("OPDOCK_FUZZ_SEED", "0"))
MOST = 1000  # programs that a mutant may survive


@pytest.fixture(autouse=True)
def _ops() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with registered():
        yield
    torch.set_num_threads(threads)


def explained(program: Program, outcome: Outcome) -> str:
    """Return what to read after a failure: the seed, and the smallest program that fails in the same way."""
    kind = outcome.wrong.partition(":")[0]
    small = shrink(program, lambda p: check(p, reinplace=True).wrong.startswith(kind))
    lowered = check(small, reinplace=True).lowered
    return (
        f"{outcome.wrong}\nagain: OPDOCK_FUZZ=1 OPDOCK_FUZZ_SEED={program.seed}\n{small}\n"
        f"became\n{lowered.graph if lowered is not None else 'nothing'}"
    )


def test_random_programs_keep_their_meaning() -> None:
    """Outputs, inputs that were not given away, constants and layouts bit for bit; no new sharing of memory."""
    removed = 0
    for seed in range(FIRST, FIRST + COUNT):
        program = generate(seed)
        outcome = check(program, reinplace=True)
        assert not outcome.wrong, explained(program, outcome)
        removed += outcome.removed
    assert removed or COUNT < 10


def test_programs_that_use_what_they_gave_away_are_refused() -> None:
    """Read, written, returned or given again, itself or through a view."""
    for seed in range(FIRST, FIRST + max(1, COUNT // 3)):
        program = generate(seed, misuse=True)
        assert program.misuse
        assert not check(program).wrong, f"{check(program).wrong}, seed {seed}\n{program}"


def test_a_seed_makes_one_program() -> None:
    for seed in range(5):
        assert str(generate(seed)) == str(generate(seed))
        assert str(generate(seed, misuse=True)) == str(generate(seed, misuse=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_the_fuzzer_notices_passes_with_a_rule_taken_out(name: str) -> None:
    with MUTANTS[name]():
        caught = next((seed for seed in range(MOST) if check(generate(seed), reinplace=True).wrong), None)
    assert caught is not None, f"not noticed in {MOST} programs"
    assert not check(generate(caught), reinplace=True).wrong
