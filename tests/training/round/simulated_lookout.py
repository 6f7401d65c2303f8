"""A simulated process and the directory: it reads everybody's leases and publishes its own."""

from typing import TYPE_CHECKING

from atom.swarm.records.lease import (
    RENEW_SECONDS,
    SHOWN,
    Lease,
    Link,
    PeerState,
    Reached,
    short_name,
)
from atom.swarm.records.lease_book import LeaseBook
from atom.training.loop import membership_view
from atom.training.round.events import Phase, View

if TYPE_CHECKING:
    from simulated_peer import Process

READ_SECONDS = 0.9
SLOW = Link(0.02, 1e6)
_STATES = {
    Phase.ACCUMULATING: PeerState.ACCUMULATING,
    Phase.STEPPING: PeerState.STEPPING,
    Phase.SYNCING: PeerState.SYNCING,
}


class Lookout:
    """One process's eyes and voice. Every time here is of that process's own clock."""

    def __init__(self, process: "Process") -> None:
        self._process = process
        self._directory = process.swarm.directory
        self._book = LeaseBook()
        self._serial = 0
        self._published_at = float("-inf")
        self._published: tuple[object, ...] = ()

    def read(self) -> None:
        """Looks once, and again every now and then."""
        process = self._process
        reading = self._directory.read(process.peer_id, process.now())
        if reading is not None:
            self._book.update(reading, process.now())
        process.later(READ_SECONDS * process.dice.uniform(0.9, 1.1), self.read)

    def view(self) -> View:
        process = self._process
        head, sequences = process.machine.head, process.sequences
        pace_s = process.seat.pass_seconds
        return membership_view(self._book, head, process.me, sequences, pace_s, process.now())

    def publish_if_news(self) -> None:
        machine, state = self._process.machine, self._state()
        news = (machine.head.digest, machine.phase, self._process.sequences, state)
        due = self._process.now() - self._published_at >= RENEW_SECONDS
        if due or news != self._published:
            self._published = news
            self.publish(state)

    def _state(self) -> PeerState:
        if self._process.leaving:
            return PeerState.LEAVING
        state = _STATES.get(self._process.machine.phase, PeerState.REDUCING)
        pauses = self._process.paused and state is PeerState.ACCUMULATING
        return PeerState.PAUSED if pauses else state

    def publish(self, state: PeerState) -> None:
        process = self._process
        self._published_at = now = process.now()
        self._serial += 1
        head = process.machine.head
        stepping = process.machine.phase is Phase.STEPPING
        lease = Lease(
            peer_id=process.peer_id,
            incarnation=process.me.incarnation,
            serial=self._serial,
            issued_at=now,
            state=state,
            head=head.digest,
            round=head.round,
            sequences=0 if stepping else process.sequences,
            sequences_per_s=0.0,
            tokens_per_s=0.0,
            pass_seconds=process.seat.pass_seconds,
            loss=None,
            state_digest=process.machine.state_digest,
            addresses=(),
            branches=head.branches[-SHOWN:],
            branches_before=len(head.branches[:-SHOWN]),
            links=self._links(),
            reached=Reached.NO if process.seat.hidden else Reached.UNKNOWN,
        )
        self._directory.publish(lease, now)

    def _links(self) -> tuple[tuple[bytes, Link], ...]:
        seat = self._process.seat
        if not seat.slow:
            return ()
        others = [other for other in self._process.swarm.seats if other is not seat]
        return tuple((short_name(other.peer_id), SLOW) for other in others[:16])
