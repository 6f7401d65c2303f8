"""What the book of leases says to the round and to the worker, at one moment. Pure.

A paused peer counts among those who share the work for as long as one that fell silent does: the
time of a lease, while we work ourselves and look on. Where all are paused and are resumed one
after the other, the first would otherwise make a round alone.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from atom.swarm.chain.commit import Head, Voter
from atom.swarm.records.lease import LEASE_SECONDS, Lease, PeerState
from atom.swarm.records.lease_book import LeaseBook
from atom.training.replica.pacing import SwarmCount
from atom.training.round.electorate import ACTIVE_STATES, same_head
from atom.training.round.events import View
from atom.training.round.machine import RoundMachine


def membership_view(
    book: LeaseBook, head: Head, me: Voter, sequences: int, pass_seconds: float, now: float
) -> View:
    """The view of `me` at `head`; `sequences` and `pass_seconds` are our own."""
    others = book.fresh(now)
    mine = others.pop(me.peer_id, None)
    absent = [
        voter
        for voter in head.voters
        if voter != me
        and getattr(others.get(voter.peer_id), "incarnation", None) != voter.incarnation
    ]
    return View(
        fresh=others,
        lapsed_seconds={voter: book.missing_for(voter, now) for voter in absent},
        dead=frozenset([v for v in absent if book.has_left(v) or book.is_replaced(v, now)]),
        sequences=sequences,
        pass_seconds=pass_seconds,
        mine=mine,
    )


def count_swarm(
    machine: RoundMachine, view: View, seen_at: float, away: AbstractSet[str]
) -> SwarmCount:
    """What the others counted, and how many share the work: those at our head, and members of the
    last round whose new lease is still on its way. Not so those that are `away` (paused for long),
    nor who leaves and has nothing counted. The view was read at `seen_at`."""
    head = machine.head
    mates = machine.answering(same_head(head, view))
    sharing = {peer for peer, lease in mates.items() if lease.sequences or not _leaves(lease)}
    behind = {
        peer
        for peer, lease in view.fresh.items()
        if lease.round < head.round and lease.state in ACTIVE_STATES and not _leaves(lease)
    }
    coming = behind.intersection(head.members) if behind else behind
    sequences = sum([lease.sequences for lease in mates.values()])
    per_s = sum([lease.sequences_per_s for lease in mates.values()])
    return SwarmCount(sequences, len((coming | sharing) - away) + 1, seen_at, per_s)


def _leaves(lease: Lease) -> bool:
    """Then it sees to the round that it counted something for, if any, and begins no other."""
    return lease.state is PeerState.LEAVING


COUNTS_ON_S = LEASE_SECONDS

_IN_A_ROUND = frozenset({PeerState.REDUCING, PeerState.STEPPING, PeerState.SYNCING})
"""A lease that says one of these does not say whether its peer is paused."""


@dataclass(frozen=True)
class PausedPeers:
    """What readings of the leases have shown so far."""

    since: Mapping[str, float] = field(default_factory=dict)
    """Peer id → when it was first seen paused (seconds, our clock), while we worked."""

    def after(self, leases: Mapping[str, Lease], working: bool, now: float) -> "PausedPeers":
        """The same after one more reading, of fresh `leases`. `working`: are we ourselves,
        and have we looked on since the last one?"""
        if not working:
            return PausedPeers()
        paused = [peer for peer, lease in leases.items() if _is_paused(lease, peer in self.since)]
        return PausedPeers({peer: self.since.get(peer, now) for peer in paused})

    def away(self, now: float) -> frozenset[str]:
        """Peers that have been paused for so long that their share is for others to do."""
        long_ago = now - COUNTS_ON_S
        return frozenset([peer for peer, since in self.since.items() if since <= long_ago])


def _is_paused(lease: Lease, was_before: bool) -> bool:
    if lease.state in _IN_A_ROUND:
        return was_before
    return lease.state is PeerState.PAUSED
