"""`python -m tests.training.explorer [--minutes M]`: search the long bounds, then each planted
fault, then walk at random for the rest of the time. Prints a table; ends with 1 at a failure.

The minutes are of one core; every search gets an equal part of them.
"""

import argparse
import sys

from .bounds import LONG, LYING
from .mutants import MUTANTS
from .search import Verdict, search, walks


def main() -> int:
    asked = argparse.ArgumentParser(description="Search all orders of events.")
    asked.add_argument("--minutes", type=float, default=20.0)
    asked.add_argument("--lies", action="store_true", help="one of the voters lies")
    given = asked.parse_args()
    chosen = LYING if given.lies else LONG
    share_s = given.minutes * 60.0 / (2 * len(chosen) + len(MUTANTS))
    _row("search", "states", "moves", "depth", "s", "verdict")
    failed = 0
    for bounds in chosen:
        failed |= _tell(bounds.name, search(bounds, share_s))
    for seed, bounds in enumerate(chosen):
        failed |= _tell(f"{bounds.name}: walks", walks(bounds, seed, share_s))
    for mutant in MUTANTS:
        verdict = mutant.search()
        failed |= verdict.trouble != mutant.trouble
        _line(mutant.name, verdict, verdict.trouble or "NOT FOUND")
    return failed


def _tell(name: str, verdict: Verdict) -> bool:
    sound = "sound" if verdict.complete else "nothing found in this time"
    _line(name, verdict, verdict.trouble or sound)
    if verdict.trouble is not None:
        sys.stdout.write(verdict.story() + "\n")
    return verdict.trouble is not None


def _line(name: str, v: Verdict, found: str) -> None:
    _row(name, f"{v.states:,}", f"{v.moves:,}", v.depth, f"{v.seconds:.1f}", found)


def _row(*cells: object) -> None:
    sys.stdout.write(f"| {' | '.join(map(str, cells))} |\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
