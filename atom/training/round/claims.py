"""Which claims of a better head are worth leaving the round for.

A lease is free, and says what its owner likes. So whoever claims a head and cannot prove it is not
believed for a while; those who belong to the run, its voters and last members, are asked first;
and a peer that is part of the rounds believes strangers the less, the more often they were wrong.
A branch from our own head is left alone while the voters that are here can do better.
"""

from atom.swarm.records.fork_choice import claimed_branches, claims_better, preferred, too_weak
from atom.swarm.records.lease import Lease
from atom.swarm.transport.quarantine import hold_s
from atom.training.round.desk import Desk
from atom.training.round.vocabulary import CaughtUp

MOST_DONORS = 8
"""Asked in one go: each that does not answer takes seconds."""
FIRST_DOUBT_S = 10.0
LONGEST_DOUBT_ALONE_S = 20.0
"""Of who averages with nobody: it may be the one that has lost the others, so it keeps asking."""
_MOST_SHUNNED = 4096


class Claims:
    """One replica's experience with others' claims."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._shunned: dict[str, float] = {}
        self._strangers_wrong = 0
        self._strangers_after = float("-inf")
        self._asked_strangers = False

    def better(self) -> list[Lease]:
        """Leases that claim a preferred head, believable ones first."""
        desk = self._desk
        here = desk.head.digest
        others = [lease for lease in desk.view.fresh.values() if lease.head != here]
        found = [lease for lease in others if self._is_better(lease)]
        if not found:
            return []
        known = self._known()
        if desk.me.peer_id in known and desk.now < self._strangers_after:
            found = [lease for lease in found if lease.peer_id in known]
        return sorted(preferred(found, desk.head), key=lambda each: each.peer_id not in known)

    def donors(self, better: list[Lease]) -> tuple[str, ...]:
        """Whom to ask, of those that `better` gave."""
        chosen = tuple(lease.peer_id for lease in better[:MOST_DONORS])
        self._asked_strangers = not self._known().intersection(chosen)
        return chosen

    def any_state(self) -> tuple[str, ...]:
        """Whom to ask by a peer that has no state at all: whoever is aside, if nobody else offers.
        What they serve is checked like everything else."""
        leases = preferred(self._desk.view.fresh.values(), self._desk.head)
        view, now = self._desk.view, self._desk.now
        offering = [lease.peer_id for lease in leases if lease.state_digest]
        found = [peer for peer in offering if peer not in view.aside] or offering
        believed = [peer for peer in found if self._shunned.get(peer, 0.0) <= now]
        return tuple((believed or found)[:MOST_DONORS])

    def learn(self, event: CaughtUp) -> None:
        """What came of asking them."""
        desk = self._desk
        self._shunned.update(dict.fromkeys(event.failed, desk.now + desk.patience.unhelpful))
        self._shunned.update(dict.fromkeys(event.shunned, desk.now + desk.patience.shun))
        while len(self._shunned) > _MOST_SHUNNED:
            del self._shunned[min(self._shunned, key=lambda peer: self._shunned[peer])]
        if event.head.digest != desk.head.digest:
            self._strangers_wrong = 0
        elif self._asked_strangers:
            self._strangers_wrong += 1
            doubt_s = hold_s(FIRST_DOUBT_S, self._strangers_wrong)
            if self._known() <= {desk.me.peer_id}:
                doubt_s = min(doubt_s, LONGEST_DOUBT_ALONE_S)
            self._strangers_after = desk.now + doubt_s
        self._asked_strangers = False

    def _known(self) -> set[str]:
        head = self._desk.head
        return {voter.peer_id for voter in head.voters} | set(head.members)

    def _is_better(self, lease: Lease) -> bool:
        mine = self._desk.head
        if not claims_better(lease, mine):
            return False
        if self._shunned.get(lease.peer_id, 0.0) > self._desk.now:
            return False
        view = self._desk.view
        overdue = self._desk.patience_lost
        weak = too_weak(mine, self._desk.me, view.fresh, claimed_branches(lease, mine), overdue)
        return not weak and lease.peer_id not in view.aside
