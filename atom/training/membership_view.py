"""What the book of leases says to the round and to the worker, at one moment. Pure."""

from atom.swarm.chain.commit import Head, Voter
from atom.swarm.records.lease import Lease, PeerState
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


def count_swarm(machine: RoundMachine, view: View, seen_at: float) -> SwarmCount:
    """What the others counted, and how many share the work: those at our head, and members of the
    last round whose new lease is still on its way. Not so who is paused, nor who leaves and has
    nothing counted. The view was read at `seen_at`."""
    head = machine.head
    aside, here = machine.status.aside, same_head(head, view)
    mates = {peer: lease for peer, lease in here.items() if peer not in aside}
    sharing = {peer for peer, lease in mates.items() if lease.sequences or not _leaves(lease)}
    behind = {
        peer
        for peer, lease in view.fresh.items()
        if lease.round < head.round and lease.state in ACTIVE_STATES and not _leaves(lease)
    }
    coming = behind.intersection(head.members) if behind else behind
    paused = {peer for peer, lease in view.fresh.items() if lease.state is PeerState.PAUSED}
    sequences = sum([lease.sequences for lease in mates.values()])
    per_s = sum([lease.sequences_per_s for lease in mates.values()])
    return SwarmCount(sequences, len((coming | sharing) - paused) + 1, seen_at, per_s)


def _leaves(lease: Lease) -> bool:
    """Then it sees to the round that it counted something for, if any, and begins no other."""
    return lease.state is PeerState.LEAVING
