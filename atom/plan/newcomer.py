"""What a newcomer makes of a swarm's rounds, from what one took without it. Pure."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class RoundNow:
    """As the peers that are there measured it."""

    peers: int
    seconds: float
    passes_s: float
    """Of them in passes."""
    sequences: int
    overlapped: bool
    """Whether passes go on while averages travel."""


@dataclass(frozen=True)
class Newcomer:
    """A peer that is not in it yet."""

    line_s: float
    """Of its line, for one average up and one down."""
    sequences_per_s: float = math.inf
    """While it computes; infinite: not known, and so its best."""


def seconds_with(now: RoundNow, newcomer: Newcomer) -> float:
    """Of a round with the newcomer in it; hardly more than this, and less only if the others'
    lines are not alike.

    Each member moves one average, and what it sums besides. With all lines busy for the same time
    n + 1 members move 2 n averages in all.
    """
    theirs = now.sequences / now.passes_s if now.passes_s else math.inf
    passes_s = now.sequences / (theirs + newcomer.sequences_per_s)
    if now.overlapped:
        return max(passes_s, newcomer.line_s)
    exchange_s, others = max(now.seconds - now.passes_s, 0.0), now.peers - 1
    if others and exchange_s:
        their_line_s = exchange_s * now.peers / (2 * others)
        lines_per_s = now.peers / their_line_s + 1 / newcomer.line_s
        exchange_s = 2 * now.peers / lines_per_s
    return passes_s + max(exchange_s, newcomer.line_s)
