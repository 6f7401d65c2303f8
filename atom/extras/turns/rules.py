"""Whose turn on the device it is: who waits longest is next, and a turn ends with a round. Pure.

Times are of the clock that all programs of this machine share. Daemons of one run have their turns
together.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

STANDINGS = HAS_IT, WAITS, NOT_NOW = "has the device", "waits", "not now"
"""What a claim may be, in words."""


@dataclass(frozen=True)
class Claim:
    """Of one daemon."""

    run: str
    """Its name, and with it its owner."""
    place: str
    """Its state directory."""
    slot_s: float
    """How long a turn is, as it wishes."""
    turn: str
    """One of `STANDINGS`."""
    since_s: float
    """Since when it has the device; else when it had it last, or began."""

    @classmethod
    def of(cls, run: str, place: str, slot_s: float, turn: str, since_s: float) -> "Claim":
        """Raises: ValueError for values that no daemon writes."""
        if turn not in STANDINGS or not slot_s > 0 or not math.isfinite(since_s + slot_s):
            raise ValueError("not a claim")
        return cls(str(run), str(place), float(slot_s), turn, float(since_s))


def may_take(mine: Claim, others: Iterable[Claim], now: float) -> bool:
    """Whether a daemon that waits has the device from now on."""
    others = list(others)
    holders = [other for other in others if other.turn == HAS_IT]
    if any(holder.run != mine.run for holder in holders):
        return False
    if holders:  # with its own run, unless that turn is over
        return not must_give(holders[0], [*others, mine], now, round_ended=True)
    ahead = min(_waiting(others), key=_queue, default=mine)
    return ahead.run == mine.run or _queue(mine) <= _queue(ahead)


def must_give(
    mine: Claim, others: Iterable[Claim], now: float, round_ended: bool, idle: bool = False
) -> bool:
    """Whether a daemon that has the device is to let others have it. `idle`: it has nothing to
    compute."""
    others = list(others)
    if any(each.turn == HAS_IT and each.run != mine.run and _queue(each) < _queue(mine)
           for each in others):  # fmt: skip
        return True  # it was taken while nobody could see the others
    waiting = [claim for claim in _waiting(others) if claim.run != mine.run]
    if not waiting or idle:
        return bool(waiting)
    together = [mine, *(each for each in others if each.turn == HAS_IT and each.run == mine.run)]
    lasts_s = now - min(each.since_s for each in together)
    slot_s = min(claim.slot_s for claim in (*together, *waiting))
    return lasts_s >= (slot_s if round_ended else 2 * slot_s)


def _waiting(claims: Iterable[Claim]) -> Iterator[Claim]:
    return (claim for claim in claims if claim.turn == WAITS)


def _queue(claim: Claim) -> tuple[float, str]:
    return claim.since_s, claim.run
