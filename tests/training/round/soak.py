"""More histories than a test has time for: `python tests/training/round/soak.py --rounds 200000`.

Starts where the tests end, on all cores. Ends at the first broken promise, with its shrunk story.
"""

import argparse
import multiprocessing
import os
import sys
import time

from histories import drawn
from shrinking import explained
from simulation import BrokenPromise

FIRST_SEED = 1000


def rounds_of(seed: int) -> tuple[int, float, str]:
    """(rounds committed, virtual seconds, the story of what broke)."""
    history = drawn(seed)
    try:
        swarm = history.play()
    except BrokenPromise:
        return 0, 0.0, explained(history)
    return swarm.witness.rounds, swarm.agenda.now, ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200_000)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    options = parser.parse_args()
    began, rounds, seconds, histories = time.monotonic(), 0, 0.0, 0
    seeds = range(options.first_seed, options.first_seed + options.rounds)
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        for committed, virtual_s, story in pool.imap_unordered(rounds_of, seeds, chunksize=4):
            if story:
                sys.exit(story)
            rounds, seconds, histories = rounds + committed, seconds + virtual_s, histories + 1
            if rounds >= options.rounds:
                break
        pool.terminate()
    sys.stdout.write(
        f"{rounds} rounds in {histories} histories of {seconds / 3600:.1f} hours, all promises"
        f" kept; {time.monotonic() - began:.0f} s on {os.cpu_count()} cores\n"
    )


if __name__ == "__main__":
    main()
