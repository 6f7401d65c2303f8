"""The way with the fewest bytes from the state we have to the newest one. Pure.

AdamW changes every weight in each round, so no part of an older state is part of a newer one. What
a peer lacks after an absence is either the averaged gradients of the rounds that it missed, which
it replays from its own state, or a whole state and the averages since.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from atom.training.state_sync.donors import Offer


@dataclass(frozen=True)
class Sizes:
    """Bytes on the wire."""

    state: int
    result: int


@dataclass(frozen=True)
class Position:
    """What is here already. Rounds count from the run's start."""

    round: int | None
    """Of our own state, if it is on the chain and can be trusted."""
    results: Collection[int] = ()
    """Rounds whose results are on our disk."""


@dataclass(frozen=True)
class Way:
    """From a state, by replay, to the end of the chain."""

    base: Offer | None
    """None: our own state."""
    first_round: int
    """Of the state replay begins at."""
    missing_bytes: int


def ways_back(
    position: Position, length: int, offers: Sequence[tuple[Offer, int]], sizes: Sizes
) -> list[Way]:
    """Every way to round `length`, fewest bytes first.

    `offers`: states on the chain, each with the bytes of it that an earlier fetch left here. The
    state of `length` itself is named by no commit yet: only what most donors say vouches for it, so
    it comes last, whatever it costs.
    """

    def results_since(base: int) -> int:
        missing = sum(number not in position.results for number in range(base + 1, length + 1))
        return missing * sizes.result

    ways = [
        Way(offer, offer.round, max(sizes.state - here, 0) + results_since(offer.round))
        for offer, here in offers
    ]
    if position.round is not None:
        ways.append(Way(None, position.round, results_since(position.round)))
    return sorted(ways, key=lambda way: _preference(way, length))


def _preference(way: Way, length: int) -> tuple[bool, int, bool, int]:
    unnamed = way.base is not None and way.first_round == length
    return unnamed, way.missing_bytes, way.base is not None, -way.first_round
