"""`python -m tests.protocol_model`: every search of the long bounds, then every mutant, as tables.

`--short` takes the bounds that the tests take, `--stories` prints the mutants' stories as well.
Ends with 1 if the protocol failed somewhere or a mutant was not found.
"""

import argparse
import sys

from .bounds import LONG, SHORT, Bounds
from .mutants import MUTANTS
from .search import Search, Verdict
from .story import story


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.protocol_model")
    parser.add_argument("--short", action="store_true", help="the bounds of the tests")
    parser.add_argument("--stories", action="store_true", help="how each mutant fails")
    chosen = parser.parse_args()
    sound = _search(SHORT if chosen.short else LONG)
    return 0 if _break(chosen.stories) and sound else 1


def _search(all_bounds: tuple[Bounds, ...]) -> bool:
    _say("| bounds | states | moves | depth | s | states/s | verdict |")
    _say("|---|---|---|---|---|---|---|")
    sound = True
    for bounds in all_bounds:
        verdict = Search(bounds).run()
        _say(f"| {bounds.name} | {_figures(verdict)} | {verdict.trouble or 'sound'} |")
        if verdict.trouble is not None:
            _say(story(verdict))
            sound = False
    return sound


def _break(tell: bool) -> bool:
    _say("\n| broken rule | found | moves | states | s |")
    _say("|---|---|---|---|---|")
    stories, found = [], True
    for mutant in MUTANTS:
        v = Search(mutant.bounds, mutant.rules).run()
        _say(
            f"| {mutant.meaning} | {v.trouble or 'NOT FOUND'} | {len(v.way)} | {v.states:,} "
            f"| {v.seconds:.1f} |"
        )
        stories.append(f"\n{mutant.meaning}\n{story(v)}")
        found = found and v.trouble is not None
    for text in stories if tell else ():
        _say(text)
    return found


def _figures(v: Verdict) -> str:
    return f"{v.states:,} | {v.moves:,} | {v.depth} | {v.seconds:.1f} | {v.states_per_s:,.0f}"


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a table is what this program is for


if __name__ == "__main__":
    sys.exit(main())
