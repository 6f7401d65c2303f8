"""Which leases that claim a better head are worth leaving the round for.

A claim proves nothing until the chain behind it was fetched. So voters and last members are asked
before strangers, and a peer that could not help is left alone for a time that doubles.
"""

from atom.swarm.records.lease import Lease, claims_better, preferred
from atom.training.round.desk import Desk
from atom.training.round.events import CaughtUp

MOST_DONORS = 8
"""Asked in one go: each that does not answer takes seconds."""
FIRST_DOUBT_S = 5.0
LONGEST_DOUBT_S = 20.0
MOST_REMEMBERED = 4096
_STRANGERS = ""
"""The name under which all strangers together are doubted."""


class HeadCandidates:
    """One replica's experience with claims of better heads."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._doubts: dict[str, tuple[int, float]] = {}
        """Peer id → how often in a row it did not help, and until when it is left alone."""
        self._asked: tuple[str, ...] = ()

    def better(self) -> list[str]:
        """Peer ids whose leases claim a preferred head, in the order to ask them."""
        head = self._desk.head
        found = [lease for lease in self._desk.view.fresh.values() if self.believes(lease)]
        if self._desk.me.peer_id in head.known and self._is_doubted(_STRANGERS):
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
        view = self._desk.view
        ranked = preferred(view.fresh.values(), self._desk.head)
        offering = [lease.peer_id for lease in ranked if lease.state_digest]
        trusted = [peer for peer in offering if peer not in view.aside] or offering
        ready = [peer for peer in trusted if not self._is_doubted(peer)]
        return self.donors(self._in_turn(ready or trusted))

    def _in_turn(self, ranked: list[str]) -> list[str]:
        """Those we know first, then those that failed us least often: a crowd that claims the most
        hides nobody for ever."""
        known = self._desk.head.known
        return sorted(ranked, key=lambda peer: (peer not in known, self._failures(peer)))

    def learn(self, event: CaughtUp) -> None:
        """What came of asking them."""
        for peer in (*event.failed, *event.shunned):
            self._doubt(peer)
        in_vain = event.head.digest == self._desk.head.digest
        if not in_vain:
            self._doubts.pop(_STRANGERS, None)
        elif self._asked and not self._desk.head.known.intersection(self._asked):
            self._doubt(_STRANGERS)
        self._asked = ()

    def believes(self, lease: Lease) -> bool:
        """Whether it claims a preferred head, and its owner is not doubted. From any thread."""
        if not claims_better(lease, self._desk.head):
            return False
        return not self._is_doubted(lease.peer_id) and lease.peer_id not in self._desk.view.aside

    def _is_doubted(self, peer: str) -> bool:
        return self._desk.now < self._doubts.get(peer, (0, 0.0))[1]

    def _failures(self, peer: str) -> int:
        return self._doubts.get(peer, (0, 0.0))[0]

    def _doubt(self, peer: str) -> None:
        times = self._failures(peer) + 1
        self._doubts.pop(peer, None)  # the last one written is the last one forgotten
        seconds = min(FIRST_DOUBT_S * 2.0 ** (times - 1), LONGEST_DOUBT_S)
        self._doubts[peer] = times, self._desk.now + seconds
        while len(self._doubts) > MOST_REMEMBERED:
            del self._doubts[next(iter(self._doubts))]
