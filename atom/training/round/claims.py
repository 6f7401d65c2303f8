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
_NEVER = float("-inf")


class Claims:
    """One replica's experience with others' claims."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._shunned: dict[str, float] = {}
        self._strangers_wrong = 0
        self._strangers_after = _NEVER
        self._asked_strangers = False
        self._asked_at: float | None = None
        """When those were asked who have not answered yet."""
        self._last_asked: dict[str, float] = {}

    def better(self) -> list[Lease]:
        """Leases that claim a preferred head, believable ones first."""
        desk = self._desk
        here = desk.head.digest
        others = [lease for lease in desk.view.fresh.values() if lease.head != here]
        found = [lease for lease in others if self.believes(lease)]
        if not found:
            return []
        known = desk.head.known
        if desk.me.peer_id in known and desk.now < self._strangers_after:
            found = [lease for lease in found if lease.peer_id in known]
        return sorted(preferred(found, desk.head), key=lambda each: each.peer_id not in known)

    def donors(self, better: list[Lease]) -> tuple[str, ...]:
        """Whom to ask, of those that `better` gave."""
        chosen = self._some_of([lease.peer_id for lease in better])
        self._asked_strangers = not self._desk.head.known.intersection(chosen)
        return chosen

    def any_state(self) -> tuple[str, ...]:
        """Whom to ask by a peer that has no state at all: whoever is aside, if nobody else offers.
        What they serve is checked like everything else."""
        leases = preferred(self._desk.view.fresh.values(), self._desk.head)
        view, now = self._desk.view, self._desk.now
        offering = [lease.peer_id for lease in leases if lease.state_digest]
        found = [peer for peer in offering if peer not in view.aside] or offering
        believed = [peer for peer in found if self._shunned.get(peer, 0.0) <= now]
        return self._some_of(believed or found)

    def _some_of(self, claimants: list[str]) -> tuple[str, ...]:
        """Of these, best first, half the best, and of the others those that were not asked for the
        longest: a crowd of leases that claim the most hides nobody for ever."""
        now, best = self._desk.now, claimants[: MOST_DONORS // 2]
        others = sorted(claimants[len(best) :], key=lambda peer: self._last_asked.get(peer, _NEVER))
        chosen = (*best, *others[: MOST_DONORS - len(best)])
        for peer in chosen:
            self._last_asked.pop(peer, None)  # the last one written is the last one asked
            self._last_asked[peer] = now
        while len(self._last_asked) > _MOST_SHUNNED:
            del self._last_asked[next(iter(self._last_asked))]
        self._asked_at = now
        return chosen

    def learn(self, event: CaughtUp) -> None:
        """What came of asking them."""
        desk, patience = self._desk, self._desk.patience
        spent_s = 0.0 if self._asked_at is None else desk.now - self._asked_at
        if desk.head.known <= {desk.me.peer_id}:
            spent_s = min(spent_s, LONGEST_DOUBT_ALONE_S)
        self._asked_at = None  # who took long is left alone as long: rounds have half of the time
        for peers, least_s in ((event.failed, patience.unhelpful), (event.shunned, patience.shun)):
            self._shunned.update(dict.fromkeys(peers, desk.now + max(least_s, spent_s)))
        while len(self._shunned) > _MOST_SHUNNED:
            del self._shunned[min(self._shunned, key=lambda peer: self._shunned[peer])]
        if event.head.digest != desk.head.digest:
            self._strangers_wrong = 0
        elif self._asked_strangers:
            self._strangers_wrong += 1
            doubt_s = hold_s(FIRST_DOUBT_S, self._strangers_wrong)
            if desk.head.known <= {desk.me.peer_id}:
                doubt_s = min(doubt_s, LONGEST_DOUBT_ALONE_S)
            self._strangers_after = desk.now + doubt_s
        self._asked_strangers = False

    def believes(self, lease: Lease) -> bool:
        """Whether it claims a preferred head, and nothing that we know speaks against it. Any
        thread."""
        mine = self._desk.head
        if not claims_better(lease, mine):
            return False
        if self._shunned.get(lease.peer_id, 0.0) > self._desk.now:
            return False
        view = self._desk.view
        overdue = self._desk.patience_lost
        weak = too_weak(mine, self._desk.me, view.fresh, claimed_branches(lease, mine), overdue)
        return not weak and lease.peer_id not in view.aside
