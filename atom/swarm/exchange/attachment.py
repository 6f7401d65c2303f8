"""Who is too slow for the ring, and which member carries it as a leaf. Pure.

With B bytes of an average on the wire, a leaf sends B to its carrier and receives B, while the ring
of the other n runs. With a seat it would send 2 n / (n + 1) · B, and hold everybody up for that
long. So with ways in bytes per second:

    seated  = 2 n / (n + 1) · B / slowest way in the best order of all  +  round trips
    carried = max( 2 (n − 1) / n · B / slowest way in the best order of the n  +  round trips,
                   (B + b) / way between leaf and carrier,
                   (2 (n − 1) / n + 1) · B / the carrier's slower way in the ring )

b are the bytes of the last bucket: within a bucket no mean is final before all of the leaf's sums
are there. So who averages no more than a bucket or two gains nothing from leaves.

And a ring is at most twice as fast without its slowest member (a third faster among four). A leaf
is carried if that saves a tenth of the time, and at least 50 ms.

Whose line is slow is `slow_lines`'. With those it has not met a slow peer is taken to be as fast as
with the best of those it has. So is everybody here who says so of one that is not slow itself.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from atom.swarm.exchange.algorithm import WORTHWHILE, WORTHWHILE_S
from atom.swarm.exchange.composition import FEWEST_SEATS
from atom.swarm.exchange.geometry import BUCKET_BYTES
from atom.swarm.exchange.order import LONGEST_S, Place, ring_order
from atom.swarm.exchange.slow_lines import SlowLines, finite_rates, slow_lines
from atom.swarm.records.lease import Link

MOST_MEMBERS = 64
"""Of more, nobody is carried: the coordinator compares up to nine orders in each round. For so many
that takes a tenth of a second, for four times as many seconds."""
MOST_TRIED = 8
"""So many of the slowest may be carried in one round."""

Ways = Mapping[str, Mapping[str, float]]
"""Bytes per second between two, the slower of both directions; not there: nothing was slow."""


@dataclass(frozen=True)
class Attachment:
    """Each leaf's carrier, and why: what a round takes so, and what with everybody seated."""

    carriers: Mapping[str, str]
    seconds: float
    seconds_seated: float

    def story(self) -> dict[str, Any]:
        """For the event log."""
        return {
            "carriers": dict(self.carriers),
            "seconds": round(self.seconds, 4),
            "seconds_seated": round(self.seconds_seated, 4),
        }


def attach(
    places: Sequence[Place], average_bytes: float, otherwise_s: float = math.inf
) -> Attachment | None:
    """The leaves that save most, if that is worth it; `otherwise_s`: another way to do without."""
    if len(places) > MOST_MEMBERS or average_bytes <= 0:
        return None
    places = [_bounded(place, 2 * average_bytes / LONGEST_S) for place in places]
    lines = slow_lines(places)
    slow = lines.slowest_first()[: min(MOST_TRIED, len(places) // 2)]
    if not slow:
        return None
    known = _with_lines(places, lines)
    seated_s = min(ring_order(known, _share(len(known)) * average_bytes).seconds, otherwise_s)
    by_leaf = average_bytes + min(BUCKET_BYTES, average_bytes)
    tried = (
        _carried(known, slow[:count], average_bytes, by_leaf) for count in range(1, len(slow) + 1)
    )
    best = min((each for each in tried if each), key=lambda each: each[1], default=None)
    if best is None or best[1] >= min(WORTHWHILE * seated_s, seated_s - WORTHWHILE_S):
        return None
    return Attachment(*best, seated_s)


def _bounded(place: Place, least_per_s: float) -> Place:
    """Beyond that an order does not tell slow from slower."""
    links = {
        peer: replace(link, bytes_per_s=max(link.bytes_per_s, least_per_s))
        for peer, link in place.links.items()
    }
    return replace(place, links=links)


def _share(members: int) -> float:
    """How many averages each member of a ring sends."""
    return 2 * (members - 1) / members


def _with_lines(places: Sequence[Place], lines: SlowLines) -> list[Place]:
    """With a speed for all ways of those of whom one is known."""
    known, slow = [], lines.sending.keys() | lines.receiving.keys()
    for place, rates in zip(places, finite_rates(places).values(), strict=True):
        of_one = max((rate for peer, rate in rates.items() if peer not in slow), default=math.inf)
        own = lines.sending.get(place.peer_id, of_one)
        links = dict(place.links)
        for other in (other.peer_id for other in places if other is not place):
            rate = min(own, lines.receiving.get(other, math.inf))
            if other not in rates and math.isfinite(rate):
                links[other] = replace(links.get(other, Link(0.0)), bytes_per_s=rate)
        known.append(replace(place, links=links))
    return known


def _ways(places: Sequence[Place]) -> Ways:
    found: dict[str, dict[str, float]] = {place.peer_id: {} for place in places}
    for place in places:
        for other, link in place.links.items():
            if other in found and math.isfinite(link.bytes_per_s):
                for one, two in ((place.peer_id, other), (other, place.peer_id)):
                    found[one][two] = min(found[one].get(two, math.inf), link.bytes_per_s)
    return found


def _carried(
    places: Sequence[Place], leaves: Sequence[str], average_bytes: float, by_leaf: float
) -> tuple[dict[str, str], float] | None:
    """Carriers for all of `leaves`, and the seconds; None if they do not find any."""
    seats = [place for place in places if place.peer_id not in leaves]
    if len(seats) < max(FEWEST_SEATS, len(leaves)):
        return None
    share, ways = _share(len(seats)), _ways(places)
    order = ring_order(seats, share * average_bytes)
    around = _slower_sides(order.members, ways)
    carriers, slowest_s = dict[str, str](), order.seconds
    for leaf in (place for peer in leaves for place in places if place.peer_id == peer):
        free = [
            (
                max(
                    by_leaf / ways[leaf.peer_id].get(seat.peer_id, math.inf),
                    (share + 1) * average_bytes / around[seat.peer_id],
                ),
                _round_trip_s(leaf, seat),
                seat.peer_id,
            )
            for seat in seats
            if seat.peer_id not in carriers.values() and _can_meet(leaf, seat)
        ]
        if not free:
            return None
        seconds, _, carriers[leaf.peer_id] = min(free)
        slowest_s = max(slowest_s, seconds)
    return carriers, slowest_s


def _slower_sides(order: Sequence[str], ways: Ways) -> dict[str, float]:
    """Of each seat's two ways in the ring."""
    slower = dict.fromkeys(order, math.inf)
    for one, two in pairwise([*order, order[0]]):
        rate = ways[one].get(two, math.inf)
        slower[one], slower[two] = min(slower[one], rate), min(slower[two], rate)
    return slower


def _round_trip_s(leaf: Place, seat: Place) -> float:
    links = (leaf.links.get(seat.peer_id), seat.links.get(leaf.peer_id))
    return max((link.round_trip_s for link in links if link is not None), default=0.0)


def _can_meet(leaf: Place, seat: Place) -> bool:
    """Without a relay, and nothing went wrong between them lately."""
    at_odds = seat.peer_id in leaf.apart or leaf.peer_id in seat.apart
    return not at_odds and not (leaf.dials_out and seat.dials_out)
