"""`python -m tests.protocol_model`: every search of the long bounds, then every mutant, as tables.

Ends with 1 if the protocol failed somewhere or a mutant was not found.
"""

import sys

from .bounds import LONG
from .mutants import MUTANTS
from .search import Search


def main() -> int:
    _row("bounds", "states", "moves", "depth", "s", "verdict")
    failed = 0
    for bounds in LONG:
        v = Search(bounds).run()
        found = v.trouble or "sound"
        _row(bounds.name, f"{v.states:,}", f"{v.moves:,}", v.depth, f"{v.seconds:.1f}", found)
        if v.trouble is not None:
            sys.stdout.write(v.story() + "\n")
            failed = 1
    _row("broken rule", "found", "moves", "states", "s")
    for mutant in MUTANTS:
        v = Search(mutant.bounds, mutant.rules).run()
        found = v.trouble or "NOT FOUND"
        _row(mutant.meaning, found, len(v.way), f"{v.states:,}", f"{v.seconds:.1f}")
        failed |= v.trouble is None
    return failed


def _row(*cells: object) -> None:
    sys.stdout.write(f"| {' | '.join(map(str, cells))} |\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
