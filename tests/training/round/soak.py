"""More histories than a test has time for: `python tests/training/round/soak.py --rounds 200000`.

Starts where the tests end, on all cores. Ends at the first broken promise, with its story.
"""

import argparse
import multiprocessing
import os
import sys
import time

from histories import drawn
from simulation import BrokenPromise

FIRST_SEED = 1000


def played(seed: int) -> tuple[int, int, bool, str]:
    """Rounds that were committed, all-reduces that were begun, and whether passes went on under
    them; and the story of a promise that broke."""
    history = drawn(seed)
    try:
        seen = history.play().witness
    except BrokenPromise as broken:
        return 0, 0, False, f"{history}\n{broken}"
    return seen.rounds, seen.triggers, history.setting.overlaps, ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200_000)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    options = parser.parse_args()
    began, histories, rounds, triggers, overlapped = time.monotonic(), 0, 0, 0, 0
    seeds = range(options.first_seed, options.first_seed + options.rounds)
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        for its_rounds, its_triggers, overlaps, story in pool.imap_unordered(played, seeds, 4):
            if story:
                sys.exit(story)
            histories, rounds = histories + 1, rounds + its_rounds
            triggers, overlapped = triggers + its_triggers, overlapped + its_rounds * overlaps
            if rounds >= options.rounds:
                break
        pool.terminate()
    sys.stdout.write(
        f"{rounds} rounds, {overlapped} of them overlapped, in {histories} histories, {triggers}"
        f" triggers, none early, all promises kept; {time.monotonic() - began:.0f} s\n"
    )


if __name__ == "__main__":
    main()
