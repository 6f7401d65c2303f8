"""In which order members sit in a ring: by who can reach whom, how fast, and how far. Pure.

What an order costs. Every member sends `2 (N − 1) / N` of the gradients to its right neighbour and
receives as much from its left, all at the same time and chunk by chunk, so the ring goes at the
pace of its slowest link; and the first chunk goes round twice before there is a result, at half a
round trip per hop. With B bytes per link that is

    seconds(order) = B / min over neighbours (bytes_per_s) + Σ over neighbours (round_trip_s)

A member's own line does not depend on the order: everybody has one right and one left neighbour.
What does is the path between two: an ocean, a crowded exchange. Two neighbours that both cannot be
dialled need a relay, and take somebody else's bandwidth: as few of those as possible come first
(with u such members of N that is 2u − N, none if it is negative). The same goes for two that a ring
broke between lately.

The order is a hint that costs time when it is wrong, never correctness. It depends on nothing but
the arguments: what is equal keeps the order it came in.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atom.swarm.records.lease import LONGEST_ROUND_TRIP_S, Link

EXACT_MEMBERS = 8
"""Up to so many, all orders are tried: 5,040."""
MOST_COMPARED = 2**24
"""Pairs of links that are looked at for one bound: a coordinator orders a thousand members in a few
seconds rather than in half a minute, in which all that promised would go on without it."""
MOST_STEPS = 4
"""For each member: more than local improvement takes, unless somebody made figures up."""
LONGEST_S = 1e5
"""No link is slower: more than a day. Beyond it sums of lengths lose what is gained by a change."""
_AVOIDED = 1e6
"""Seconds that stand for a link that should be none: more than anything measured."""
_LEAST_GAIN_S = 1e-6
"""A thousand times what rounding adds to lengths of `_AVOIDED`: else changes undo each other."""
_BOUNDS = 4

Matrix = NDArray[np.float64]
Order = NDArray[np.intp]


@dataclass(frozen=True)
class Place:
    """A member, as far as its place in a ring is concerned."""

    peer_id: str
    dials_out: bool = False
    """Nobody can dial it."""
    links: Mapping[str, Link] = field(default_factory=dict)
    """To others, by peer id, as far as measured."""
    apart: frozenset[str] = frozenset()
    """Peers beside which it was not well lately: one of the two cannot reach the other, say."""


@dataclass(frozen=True)
class RingOrder:
    """The order chosen, and why: what it costs, and what the given order would have cost."""

    members: tuple[str, ...]
    relayed: int
    """Neighbours that can only meet through a relay."""
    seconds: float
    seconds_as_given: float

    def story(self) -> dict[str, Any]:
        """For the event log."""
        return {
            "members": list(self.members),
            "relayed": self.relayed,
            "seconds": round(self.seconds, 4),
            "seconds_as_dealt": round(self.seconds_as_given, 4),
        }


@dataclass(frozen=True)
class _Ways:
    """Between all pairs, symmetric: the worse of both directions where both are known."""

    avoided: Matrix
    """1 where neither can dial the other, or something was wrong between them lately."""
    transfer_s: Matrix
    """For the bytes of a link, by what was measured of this pair."""
    round_trip_s: Matrix
    """The median of all where nothing was measured."""

    def cost(self, order: Order) -> tuple[float, float]:
        """Of one order: (neighbours that should be none, seconds)."""
        avoided, seconds = self.costs(order[None, :])
        return float(avoided[0]), float(seconds[0])

    def costs(self, orders: Order) -> tuple[Matrix, Matrix]:
        """Of many orders, one per row."""
        right = np.roll(orders, -1, axis=1)
        seconds = self.transfer_s[orders, right].max(axis=1)
        seconds = seconds + self.round_trip_s[orders, right].sum(axis=1)
        return self.avoided[orders, right].sum(axis=1), seconds


def ring_order(places: Sequence[Place], bytes_per_link: float) -> RingOrder:
    """The best order found for `places`; the best there is up to EXACT_MEMBERS of them."""
    if not any(place.dials_out or place.links or place.apart for place in places):
        return RingOrder(tuple(place.peer_id for place in places), 0, 0.0, 0.0)
    given = np.arange(len(places))
    ways = _ways(places, bytes_per_link)
    before = ways.cost(given)
    chosen = given
    if len(places) > 2:
        chosen = _exact(ways) if len(places) <= EXACT_MEMBERS else improved(ways)
        if not _better(ways.cost(chosen), before):
            chosen = given
    seated = [places[index] for index in chosen.tolist()]
    relayed = sum(
        one.dials_out and other.dials_out
        for one, other in zip(seated, seated[1:] + seated[:1], strict=True)
    )
    members = tuple(place.peer_id for place in seated)
    return RingOrder(members, relayed, ways.cost(chosen)[1], before[1])


def _better(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """By more than rounding."""
    return one[0] < other[0] or (one[0] == other[0] and one[1] < other[1] * (1 - 1e-9))


def _ways(places: Sequence[Place], bytes_per_link: float) -> _Ways:
    count = len(places)
    rank = {place.peer_id: index for index, place in enumerate(places)}
    transfer_s, round_trip_s = np.zeros((count, count)), np.full((count, count), -1.0)
    for here, place in enumerate(places):
        for peer_id, link in place.links.items():
            there = rank.get(peer_id)
            if there is None or there == here:
                continue
            for pair in ((here, there), (there, here)):
                needed_s = min(bytes_per_link / link.bytes_per_s, LONGEST_S)
                transfer_s[pair] = max(transfer_s[pair], needed_s)
                trip_s = min(link.round_trip_s, LONGEST_ROUND_TRIP_S)
                round_trip_s[pair] = max(round_trip_s[pair], trip_s)
    known = round_trip_s[round_trip_s >= 0]
    round_trip_s[round_trip_s < 0] = float(np.median(known)) if len(known) else 0.0
    outward = np.array([place.dials_out for place in places], dtype=bool)
    avoided = outward[:, None] & outward[None, :]
    for here, place in enumerate(places):
        for there in {rank[peer_id] for peer_id in place.apart & rank.keys()}:
            avoided[here, there] = avoided[there, here] = True
    return _Ways(avoided.astype(np.float64), transfer_s, round_trip_s)


@lru_cache(maxsize=8)
def _all_orders(count: int) -> Order:
    """Of a ring that begins with the first: turning it changes nothing."""
    rest = list(itertools.permutations(range(1, count)))
    return np.array([(0, *order) for order in rest], dtype=np.intp)


def _exact(ways: _Ways) -> Order:
    orders = _all_orders(len(ways.avoided))
    avoided, seconds = ways.costs(orders)
    seconds = np.where(avoided == avoided.min(), seconds, np.inf)
    best: Order = orders[int(seconds.argmin())]
    return best


def improved(ways: _Ways) -> Order:
    """A good order: for a few bounds on the slowest link, the shortest way round that local
    improvement finds without slower ones; then the best of these by what they really cost."""
    found = [_shortest(_lengths(ways, bound)) for bound in _bounds(ways.transfer_s)]
    return min(found, key=lambda order: ways.cost(order))


def _bounds(transfer_s: Matrix) -> list[float]:
    """A few of the transfer times that occur, the longest among them."""
    times = np.unique(transfer_s)
    picked = np.linspace(0, len(times) - 1, min(len(times), _BOUNDS)).round().astype(int)
    return [float(times[index]) for index in picked]


def _lengths(ways: _Ways, bound_s: float) -> Matrix:
    too_slow = np.where(ways.transfer_s > bound_s, _AVOIDED / 1e3 + ways.transfer_s, 0.0)
    return ways.avoided * _AVOIDED + too_slow + ways.round_trip_s


def _shortest(lengths: Matrix) -> Order:
    """A closed way through all that no reversal of a part and no move of a member shortens; of
    very many members the best that a bounded number of such steps finds."""
    order = _nearest_neighbours(lengths)
    for _ in range(min(MOST_COMPARED // lengths.size, MOST_STEPS * len(lengths))):
        shorter = _reversed_part(order, lengths)
        if shorter is None:
            shorter = _moved_member(order, lengths)
        if shorter is None:
            break
        order = shorter
    return order


def _nearest_neighbours(lengths: Matrix) -> Order:
    order, seated = [0], np.zeros(len(lengths), dtype=bool)
    while len(order) < len(lengths):
        seated[order[-1]] = True
        order.append(int(np.where(seated, np.inf, lengths[order[-1]]).argmin()))
    return np.array(order, dtype=np.intp)


def _reversed_part(order: Order, lengths: Matrix) -> Order | None:
    """The best reversal of a part (2-opt): the edges at both its ends are exchanged."""
    right = np.roll(order, -1)
    edges = lengths[order, right]
    gain = (
        edges[:, None] + edges[None, :]
        - lengths[np.ix_(order, order)] - lengths[np.ix_(right, right)]
    )  # fmt: skip
    gain[np.tril_indices(len(order))] = 0.0
    first, last = np.unravel_index(int(gain.argmax()), gain.shape)
    if gain[first, last] <= _LEAST_GAIN_S:
        return None
    changed = order.copy()
    changed[first + 1 : last + 1] = changed[first + 1 : last + 1][::-1]
    return changed


def _moved_member(order: Order, lengths: Matrix) -> Order | None:
    """The best move of one member to between two others (or-opt)."""
    left, right = np.roll(order, 1), np.roll(order, -1)
    freed = lengths[left, order] + lengths[order, right] - lengths[left, right]
    added = (
        lengths[np.ix_(order, order)]
        + lengths[np.ix_(order, right)]
        - lengths[order, right][None, :]
    )
    gain = freed[:, None] - added
    indices = np.arange(len(order))
    gain[indices, indices] = gain[indices, indices - 1] = 0.0  # beside itself
    member, after = np.unravel_index(int(gain.argmax()), gain.shape)
    if gain[member, after] <= _LEAST_GAIN_S:
        return None
    rest = [int(index) for index in order if index != order[member]]
    rest.insert(rest.index(int(order[after])) + 1, int(order[member]))
    return np.array(rest, dtype=np.intp)
