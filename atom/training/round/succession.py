"""Who goes on with the rounds once we are gone. Pure.

To found a branch takes a voter of the head or a member of its round, by peer id; and who has not
the head's state goes on without the round that led to it.
"""

from dataclasses import dataclass

from atom.swarm.chain.commit import Head, Voter
from atom.swarm.records.lease import Lease, PeerState, claims_better
from atom.training.round.events import View

UNSEEN_S = 10.0
"""For so long after a round, who signed it is at work, though the directory may not show it."""


@dataclass(frozen=True)
class Signers:
    """Of a head's commit. Only who has the state signs."""

    peer_ids: frozenset[str]
    age_s: float
    """Since it was applied here."""


def leaves_them_stuck(head: Head, me: Voter, view: View, signers: Signers | None) -> bool:
    """Whether others work here, and none of those that stay could go on from this head. `signers`:
    of the commit by which we came to it; None: we have it from others."""
    staying = {i: lease for i, lease in view.fresh.items() if lease.state is not PeerState.LEAVING}
    unseen = _unseen(signers, head, me, view)
    holders = {
        i
        for i, lease in staying.items()
        if signers is None or i in signers.peer_ids or _claims_it(lease, head)
    }
    at_work = any(lease.state is not PeerState.PAUSED for lease in staying.values())
    able = (holders | unseen) & head.known
    return (at_work or bool(unseen)) and me.peer_id in head.known and not able


def _unseen(signers: Signers | None, head: Head, me: Voter, view: View) -> frozenset[str]:
    """Who signed just now and said no goodbye. Whoever has left is not among the fresh, either; and
    who said as it promised that it leaves is a member of the round that it signed, and no voter."""
    if signers is None or signers.age_s >= UNSEEN_S:
        return frozenset()
    leaving = set(head.members) - {voter.peer_id for voter in head.voters}
    gone = {voter.peer_id for voter in view.dead}
    return signers.peer_ids - view.fresh.keys() - leaving - gone - {me.peer_id}


def _claims_it(lease: Lease, head: Head) -> bool:
    return lease.head == head.digest or claims_better(lease, head)
