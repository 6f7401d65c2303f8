"""Which leases that claim a better head are worth leaving the round for.

A claim proves nothing until the chain behind it was fetched. So voters and last members are asked
before strangers, and a peer that could not help is left alone for a time that doubles.
"""

from atom.swarm.records.lease import Lease, claims_better, preferred
from atom.training.round.events import CaughtUp
from atom.training.round.faults import Backoff
from atom.training.round.round_state import RoundContext

MOST_DONORS = 8
"""Asked in one go: each that does not answer takes seconds."""
FIRST_DOUBT_S = 5.0
LONGEST_DOUBT_S = 20.0
_STRANGERS = ""
"""The name under which all strangers together are doubted."""


class HeadCandidates:
    """One replica's experience with claims of better heads."""

    def __init__(self, context: RoundContext) -> None:
        self._context = context
        self._doubts = Backoff(FIRST_DOUBT_S, LONGEST_DOUBT_S)
        self._asked: tuple[str, ...] = ()

    def better(self) -> list[str]:
        """Peer ids whose leases claim a preferred head, in the order to ask them."""
        head = self._context.head
        found = [lease for lease in self._context.view.fresh.values() if self.believes(lease)]
        if self._context.me.peer_id in head.known and self._is_doubted(_STRANGERS):
            found = [lease for lease in found if lease.peer_id in head.known]
        ranked = [lease.peer_id for lease in preferred(found, head)]
        return self._in_turn(ranked)

    def donors(self, claimants: list[str]) -> tuple[str, ...]:
        """Whom of them to ask now."""
        self._asked = tuple(claimants[:MOST_DONORS])
        return self._asked

    def any_state(self) -> tuple[str, ...]:
        """Whom to ask for a peer that has no state at all. A peer that is aside or doubted will do
        if nobody else offers one: what it serves is checked like everything else."""
        view = self._context.view
        ranked = preferred(view.fresh.values(), self._context.head)
        offering = [lease.peer_id for lease in ranked if lease.state_digest]
        trusted = [peer for peer in offering if peer not in view.aside] or offering
        ready = [peer for peer in trusted if not self._is_doubted(peer)]
        return self.donors(self._in_turn(ready or trusted))

    def _in_turn(self, ranked: list[str]) -> list[str]:
        """Those we know first, then those that failed us least often: a crowd that claims the most
        hides nobody for ever."""
        known = self._context.head.known
        return sorted(ranked, key=lambda peer: (peer not in known, self._doubts.failures(peer)))

    def learn(self, event: CaughtUp) -> None:
        """What came of asking them."""
        for peer in (*event.failed, *event.shunned):
            self._doubts.fail(peer, self._context.now)
        if event.head.digest != self._context.head.digest:
            for peer in (_STRANGERS, *self._asked):
                self._doubts.forgive(peer)
        elif self._asked and not self._context.head.known.intersection(self._asked):
            self._doubts.fail(_STRANGERS, self._context.now)
        self._asked = ()

    def believes(self, lease: Lease) -> bool:
        """Whether it claims a preferred head, and its owner is not doubted. From any thread."""
        if not claims_better(lease, self._context.head):
            return False
        return not self._is_doubted(lease.peer_id) and lease.peer_id not in self._context.view.aside

    def _is_doubted(self, peer: str) -> bool:
        return self._doubts.holds(peer, self._context.now)
