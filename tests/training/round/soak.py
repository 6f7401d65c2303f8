"""More histories than a test has time for: `python tests/training/round/soak.py --rounds 200000`.

Starts where the tests end, on all cores. Ends at the first broken promise, with its story.
"""

import argparse
import multiprocessing
import os
import sys
import time
from typing import NamedTuple

from histories import ONE_IN, OVERLAPPED, drawn
from simulation import BrokenPromise

FIRST_SEED = 1000


class Played(NamedTuple):
    """What came of one history."""

    rounds: int = 0
    """That were committed."""
    triggers: int = 0
    """All-reduces that were begun."""
    overlapped: int = 0
    """Rounds of a history in which passes go on under an exchange."""
    virtual_s: float = 0.0
    story: str = ""
    """Of the promise that broke."""


def played(seed: int) -> Played:
    history = drawn(seed)
    try:
        swarm = history.play()
    except BrokenPromise as broken:
        return Played(story=f"{history}\n{broken}")
    seen = swarm.witness
    overlapped = seen.rounds * history.setting.overlaps
    return Played(seen.rounds, seen.triggers, overlapped, swarm.agenda.now)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200_000)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--overlapped", action="store_true", help="only such histories")
    options = parser.parse_args()
    began, rounds, all_played = time.monotonic(), 0, list[Played]()
    seeds = range(options.first_seed, options.first_seed + options.rounds)
    if options.overlapped:
        seeds = seeds[(OVERLAPPED - options.first_seed) % ONE_IN :: ONE_IN]
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        for one in pool.imap_unordered(played, seeds, chunksize=4):
            if one.story:
                sys.exit(one.story)
            all_played.append(one)
            rounds += one.rounds
            if rounds >= options.rounds:
                break
        pool.terminate()
    hours = sum(one.virtual_s for one in all_played) / 3600
    triggers = sum(one.triggers for one in all_played)
    overlapped = sum(one.overlapped for one in all_played)
    took_s, cores = time.monotonic() - began, os.cpu_count()
    sys.stdout.write(
        f"{rounds} rounds, {overlapped} of them overlapped, in {len(all_played)} histories of"
        f" {hours:.1f} hours, {triggers} triggers, none early, all promises kept; {took_s:.0f} s on"
        f" {cores} cores\n"
    )


if __name__ == "__main__":
    main()
