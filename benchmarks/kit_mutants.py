"""Run the conformance kit over a correct package with a fault seeded in, once for each fault, and count what it finds.

    python benchmarks/kit_mutants.py [--only NAME] [--grid small] [--jobs 2]
        [--without CHECK] [--resume FILE] [--out benchmarks/results]

The faults are those of ``tests/testing/mutants``; a run stops at its first failed check. Controls are correct changes,
which run to the end. ``--resume`` keeps outcomes in a file, and takes from it those of the same text and the same kit.
Exit status 1 if the kit finds a control wrong, or misses more than 5 % of the faults that break a rule; each fault that
it misses is listed.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import hashlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from record import Result, Row, write

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "testing"))
from mutants import CONTROLS, FAULTS, OUT_OF_REACH, REASONS, Mutant, files_of, named
from package import NAME
from package import write as write_package

CONDITIONS = (
    "Each fault is one edit of a correct package for CPU tensors: a platform, four providers, three replaced layers. "
    "A run of the kit stops at its first failed check; the seconds are its own, with other runs beside it. "
    f"OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', '')}."
)
LAYER_KINDS = ("replacement", "replaced", "layer", "model")
"""Kinds of subjects that are looked at first where the fault is in a layer: it saves the time of the others."""

COUNTS = 12  # rows before those of the mutants
SHOWN = 110  # characters of a message


@dataclass(frozen=True)
class Outcome:
    """What the kit said.

    Args:
        name: of the mutant.
        check: that failed first, "" if none did.
        message: its first line, or the mutant's fault if no check failed.
        seconds: that the run took.
    """

    name: str
    check: str
    message: str
    seconds: float


def examine(name: str, grid: str, without: tuple[str, ...]) -> Outcome:
    """Run the kit over one mutant, to the first failure, without the checks of these names."""
    mutant, start = named(name), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        site = write_package(Path(folder) / "site", files_of(mutant))
        first = LAYER_KINDS if mutant.edits[0][0] == "layers.py" else ()
        check, message = _first_failure(site, grid, without, first)
        message = message.replace(folder, "")
    return Outcome(name, check, (message.splitlines() or [mutant.what])[0][:SHOWN], time.perf_counter() - start)


def _first_failure(site: Path, grid: str, without: tuple[str, ...], first: tuple[str, ...]) -> tuple[str, str]:
    from opdock.testing.session import Session
    from opdock.testing.settings import Settings

    sys.path.insert(0, str(site))
    try:
        with contextlib.closing(Session(Settings(NAME, grid))) as session:
            items = [(check, subject) for check, subject in session.items() if check.name not in without]
            for check, subject in sorted(items, key=lambda item: bool(first) and item[0].kind not in first):
                result = session.run(check.name, subject)
                if result.status == "failed":
                    return result.id, result.message
    finally:
        sys.path.remove(str(site))
    return "", ""


class Kept:
    """Outcomes in a file, one JSON object a line; each goes with the mutant's text, the kit's text and the options.

    Args:
        file: where they are, or None to keep none.
        options: of the run, whatever changes an outcome.
    """

    def __init__(self, file: Path | None, *options: object) -> None:
        """Read what there is."""
        self._file, self._outcomes = file, {}
        self._base = hashlib.sha256(repr(options).encode())
        import opdock.testing

        kit = Path(opdock.testing.__file__).parent
        for source in sorted((*kit.glob("*.py"), *kit.glob("checks/*.py"))):
            self._base.update(source.read_bytes())
        if file is not None and file.exists():
            entries = (json.loads(text) for text in file.read_text(encoding="utf-8").splitlines())
            self._outcomes = {entry.pop("key"): Outcome(**entry) for entry in entries}

    def key(self, name: str) -> str:
        """Return what an outcome goes with."""
        digest = self._base.copy()
        digest.update(repr((name, sorted(files_of(named(name)).items()))).encode())
        return digest.hexdigest()

    def get(self, name: str) -> Outcome | None:
        """Return the outcome of a mutant, if it is there."""
        return self._outcomes.get(self.key(name))

    def add(self, outcome: Outcome) -> None:
        """Keep one."""
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({"key": self.key(outcome.name), **asdict(outcome)}) + "\n")


def run(mutants: Iterable[Mutant], grid: str, jobs: int, without: tuple[str, ...], kept: Kept) -> list[Outcome]:
    """Return the outcome of each, in order; printed as they come."""
    found = {m.name: kept.get(m.name) for m in mutants}
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        asked = [pool.submit(examine, name, grid, without) for name, outcome in found.items() if outcome is None]
        for future in as_completed(asked):
            outcome = future.result()
            kept.add(outcome)
            found[outcome.name] = outcome
            print(line(outcome), f"({outcome.seconds:.1f} s)", flush=True)
    return [outcome for outcome in found.values() if outcome is not None]


def line(outcome: Outcome) -> str:
    """Return the outcome in words."""
    harmless, breaks_none = named(outcome.name).harmless, outcome.name in REASONS
    if outcome.check:
        verdict = "FALSE ALARM" if harmless else "caught, though it breaks no rule," if breaks_none else "caught"
        return f"{outcome.name}: {verdict} by {outcome.check}: {outcome.message}"
    if harmless:
        return f"{outcome.name}: passes: {outcome.message}"
    if breaks_none:
        return f"{outcome.name}: survives, and breaks no rule: {outcome.message} ({REASONS[outcome.name]})"
    reason = OUT_OF_REACH.get(outcome.name, "")
    return f"{outcome.name}: SURVIVES: {outcome.message}" + (f" (out of reach: {reason})" if reason else "")


def rows(found: list[Outcome], before: int) -> list[Row]:
    """Return the counts, then one row for each mutant with its seconds; ``before`` of them were kept from before."""
    faults = [o for o in found if not named(o.name).harmless]
    caught = [o for o in faults if o.check]
    alarms = [o for o in found if named(o.name).harmless and o.check]
    share = 100 * len(caught) / max(1, len(faults))
    rules = [o for o in faults if o.name not in REASONS]
    kept = [o for o in rules if o.check]
    counts: list[Row] = [
        ("faults", float(len(faults)), "", None, ""),
        ("faults caught", float(len(caught)), "", None, ""),
        ("share of the faults caught", share, "%", None, ""),
        ("faults that break no rule", float(len(faults) - len(rules)), "", None, ""),
        ("faults that break a rule", float(len(rules)), "", None, ""),
        ("of these caught", float(len(kept)), "", None, ""),
        ("share of these caught", 100 * len(kept) / max(1, len(rules)), "%", 95.0, ">="),
        ("controls", float(len(found) - len(faults)), "", None, ""),
        ("false alarms on controls", float(len(alarms)), "", 0.0, "<="),
        ("seconds of a run, mean", sum(o.seconds for o in found) / max(1, len(found)), "s", None, ""),
        ("seconds of all runs, sum", sum(o.seconds for o in found), "s", None, ""),
        ("outcomes taken from the file of --resume", float(before), "", None, ""),
    ]
    return counts + [(line(o), o.seconds, "s", None, "") for o in sorted(found, key=_order)]


def _order(outcome: Outcome) -> int:
    """Return where an outcome is listed: survivors first, then those that rightly survive, then the others."""
    return 2 if outcome.check or named(outcome.name).harmless else int(outcome.name in REASONS)


def main() -> int:
    """Run all of them, or those that are asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a mutant; patterns are allowed")
    parser.add_argument("--grid", choices=("small", "full"), default="small", help="of the kit")
    parser.add_argument("--without", action="append", default=[], metavar="CHECK", help="a check to leave out")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep outcomes here, and do not run those again")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--out", type=Path, help="folder for kit_mutants.json and kit_mutants.txt")
    given = parser.parse_args()
    chosen = [m for m in (*FAULTS, *CONTROLS) if not given.only or any(fnmatch.fnmatch(m.name, p) for p in given.only)]
    if not chosen:
        parser.error("no mutant has such a name")
    start = time.perf_counter()
    without = tuple(given.without)
    kept = Kept(given.resume, given.grid, without)
    before = sum(kept.get(m.name) is not None for m in chosen)
    found = run(chosen, given.grid, given.jobs, without, kept)
    made = rows(found, before)
    raw = {"all, s": time.perf_counter() - start, **{o.name: o.seconds for o in found}}
    result = Result("kit_mutants", CONDITIONS, ["torch", "hypothesis", "opdock"], made, raw)
    print()
    print(Result("", "", [], made[:COUNTS], {}).table())
    if given.out is not None:
        write(result, given.out)
    return int(bool(result.missed()))


if __name__ == "__main__":
    sys.exit(main())
