"""How the members of an attempt average, by what leases say of the ways between them. Pure: leases
are hints, so the choice may be poor, never wrong."""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence

from atom.swarm.chain.commit import Contribution
from atom.swarm.exchange.choice import Choice, Line, choose, line_rates
from atom.swarm.records.lease import Lease, Link, short_name
from atom.training.round.electorate import hidden_peers
from atom.training.round.events import View

Pair = frozenset[str]
"""Two peer ids."""


def choose_exchange(
    members: Sequence[Contribution],
    view: View,
    average_bytes: int,
    ring_possible: bool,
    apart: Collection[Pair],
) -> Choice:
    """`apart`: pairs that an exchange broke between lately; they own no part."""
    leases = {**view.fresh, **({view.mine.peer_id: view.mine} if view.mine else {})}
    links = _links(members, leases)
    round_trips = [link.round_trip_s for link in links.values()]
    latency_s = statistics.median_low(round_trips) / 2 if round_trips else None
    lines = _lines(members, links, hidden_peers(view), apart)
    return choose(lines, average_bytes, latency_s, ring_possible)


def _lines(
    members: Sequence[Contribution],
    links: Mapping[tuple[str, str], Link],
    hidden: set[str],
    apart: Collection[Pair],
) -> list[Line]:
    """Owners are dialled by all others: who can be, has no broken way to another member, and has
    work to give. If there is nobody like that, the last wish goes first."""
    peers = {member.peer_id for member in members}
    broken = frozenset[str]().union(*[pair for pair in apart if pair <= peers])
    rates = {way: link.bytes_per_s for way, link in links.items()}
    slow = line_rates({way: rate for way, rate in rates.items() if math.isfinite(rate)})
    idle = {member.peer_id for member in members if not member.sequences}
    able = [peers - hidden - broken - idle, peers - hidden - broken, peers - hidden, peers]
    owners = next(filter(None, able))
    return [Line(slow.get(m.peer_id), m.peer_id in owners) for m in members]


def _links(
    members: Sequence[Contribution], leases: Mapping[str, Lease]
) -> dict[tuple[str, str], Link]:
    """What members measured of their ways to each other, by sender and receiver."""
    names = {short_name(member.peer_id): member.peer_id for member in members}
    return {
        (peer_id, names[name]): link
        for peer_id, lease in leases.items()
        if peer_id in names.values()
        for name, link in lease.links
        if name in names and names[name] != peer_id
    }
