"""How the members of a ring sit, or that they do without one, as far as their leases say. Pure;
leases are hints, so the choice may be poor, never wrong."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from atom.swarm.chain.commit import Contribution
from atom.swarm.exchange.algorithm import Algorithm, Choice, choose, measured
from atom.swarm.exchange.attachment import Attachment, attach
from atom.swarm.exchange.order import Place, RingOrder, ring_order
from atom.swarm.records.lease import Lease, Reached, short_name
from atom.training.round.events import View

Pair = frozenset[str]
"""Two peer ids."""


def seat_members(
    dealt: Sequence[Contribution],
    view: View,
    average_bytes: int,
    apart: Collection[Pair] = (),
) -> tuple[tuple[Contribution, ...], RingOrder]:
    """The members in ring order, and why. What leases do not decide stays as dealt.

    `average_bytes`: of one average on the wire. `apart`: who should not be neighbours.
    """
    places = _places(dealt, view, apart)
    order = ring_order(places, 2 * (len(dealt) - 1) / len(dealt) * average_bytes)
    by_peer = {member.peer_id: member for member in dealt}
    return tuple(by_peer[peer_id] for peer_id in order.members), order


def choose_algorithm(
    members: Sequence[Contribution],
    view: View,
    average_bytes: int,
    apart: Collection[Pair] = (),
) -> Choice:
    """A ring or a one-shot exchange of `members`, and why."""
    return choose(len(members), average_bytes, measured(_places(members, view, apart)))


def attach_leaves(
    dealt: Sequence[Contribution],
    view: View,
    average_bytes: int,
    apart: Collection[Pair] = (),
) -> Attachment | None:
    """Who of the members is to be carried by whom, and why; None: everybody has a seat."""
    places = _places(dealt, view, apart)
    choice = choose(len(dealt), average_bytes, measured(places))
    direct = choice.algorithm is Algorithm.ONE_SHOT
    return attach(places, average_bytes, choice.one_shot_s if direct else math.inf)


def _places(members: Sequence[Contribution], view: View, apart: Collection[Pair]) -> list[Place]:
    leases = {**view.fresh, **({view.mine.peer_id: view.mine} if view.mine else {})}
    names = {short_name(member.peer_id): member.peer_id for member in members}
    places = [_place(member.peer_id, leases.get(member.peer_id), names) for member in members]
    return [replace(place, apart=_apart(place.peer_id, apart)) for place in places]


def _place(peer_id: str, lease: Lease | None, names: Mapping[bytes, str]) -> Place:
    if lease is None:
        return Place(peer_id)
    links = {names[name]: link for name, link in lease.links if name in names}
    return Place(peer_id, lease.reached is Reached.NO, links)


def _apart(peer_id: str, pairs: Collection[Pair]) -> frozenset[str]:
    return frozenset(other for pair in pairs if peer_id in pair for other in pair - {peer_id})
