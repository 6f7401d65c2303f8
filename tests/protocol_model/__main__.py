"""`python -m tests.protocol_model`: every search of the long bounds, then every mutant, as tables.

Ends with 1 if the protocol failed somewhere or a mutant was not found.
"""

import sys

from .bounds import LONG
from .mutants import MUTANTS
from .search import Search


def main() -> int:
    return 0 if _search() & _break() else 1


def _search() -> bool:
    _row("bounds", "states", "moves", "depth", "s", "states/s", "verdict")
    _row(*["---"] * 7)
    sound = True
    for bounds in LONG:
        v = Search(bounds).run()
        per_s = v.states / max(v.seconds, 1e-9)
        figures = f"{v.states:,}", f"{v.moves:,}", v.depth, f"{v.seconds:.1f}", f"{per_s:,.0f}"
        _row(bounds.name, *figures, v.trouble or "sound")
        if v.trouble is not None:
            sys.stdout.write(v.story() + "\n")
            sound = False
    return sound


def _break() -> bool:
    sys.stdout.write("\n")
    _row("broken rule", "found", "moves", "states", "s")
    _row(*["---"] * 5)
    verdicts = [Search(mutant.bounds, mutant.rules).run() for mutant in MUTANTS]
    for mutant, v in zip(MUTANTS, verdicts, strict=True):
        found = v.trouble or "NOT FOUND"
        _row(mutant.meaning, found, len(v.way), f"{v.states:,}", f"{v.seconds:.1f}")
    return all(v.trouble is not None for v in verdicts)


def _row(*cells: object) -> None:
    sys.stdout.write(f"| {' | '.join(map(str, cells))} |\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
