"""Event loop of the rounds: it passes events to the round machine and carries out its actions.

One thread owns the machine. Slow work runs on other threads and returns as an event: passes and
steps on the worker's thread, exchanges on their own threads, directory readings on another one.
"""

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from atom.base.errors import PeerRefused, Reason
from atom.swarm.chain.commit import Head, Voter
from atom.swarm.chain.messages import Leases, decode, encode
from atom.swarm.records.lease import Lease, LeaseBook
from atom.swarm.stream.bandwidth import TokenBucket
from atom.swarm.transport.limits import offend
from atom.training.replica.pacing import count_swarm
from atom.training.round import events
from atom.training.round.events import Action, Event, View
from atom.training.round.machine import RoundMachine
from atom.training.round_executor import RoundExecutor

TICK_S = 0.1
MAX_WAITING = 4096
"""Number of events in the inbox beyond which messages of other peers are dropped."""
_AT_WILL = frozenset({"nack", "value-refused"})
"""Kinds of reports that any message can cause; they are rate-limited, so no flood fills the log."""


class Inbox(queue.SimpleQueue[Event | events.Offence | Callable[[], None] | None]):
    """Queue of the loop: events for the machine, and functions to call on the loop's thread.

    None ends the loop.
    """

    def __init__(
        self, on_leases: Callable[[str, Leases], None] = lambda sender, leases: None
    ) -> None:
        """Create an empty inbox.

        Args:
            on_leases: Takes leases that a peer sent, on the transport's thread; raises PeerRefused.
        """
        self._on_leases = on_leases
        self.is_read = False
        """True once the loop has begun. Earlier messages are dropped.

        Rebuilding a state takes long, so they would be stale.
        """

    def receive(self, peer_id: str, incarnation: bytes, raw: bytes) -> None:
        """Queue a message from the transport.

        A malformed message is reported as an offence. If the queue is full, the message is dropped,
        as a network might drop it.

        Args:
            peer_id: Sender.
            incarnation: Incarnation of the sender's process.
            raw: Encoded message.
        """
        if not self.is_read or self.qsize() >= MAX_WAITING:
            return
        try:
            message = decode(raw)
            if isinstance(message, Leases):
                self._on_leases(peer_id, message)
            else:
                self.put(events.Received(peer_id, incarnation, message))
        except PeerRefused as refused:
            self.put(events.Offence(peer_id, refused.reason))

    def unreachable(self, peer_id: str) -> None:
        """Report that a message to this peer could not be delivered."""
        self.put(events.Unreachable(peer_id))


@dataclass(eq=False)
class RoundLoop:
    """Thread that owns the round machine and the lease book; other threads use its inbox.

    `start` starts it. The callbacks are called on it.
    """

    machine: RoundMachine
    """Round machine, which only this loop uses."""
    executor: RoundExecutor
    """Executor of the actions that concern the replica; its outcomes go to `inbox`."""
    inbox: Inbox
    on_change: Callable[[], None]
    """Function called when head or phase have changed, so our lease should be renewed soon."""
    on_failure: Callable[[BaseException], None]
    """Receiver of the error that ended the loop."""

    def __post_init__(self) -> None:
        self._transport = self.executor.transport
        self._clock, self._log = self.executor.clock, self.executor.log
        self._book = LeaseBook()
        self._complaints = TokenBucket(1.0, 20.0)
        self.view = View()
        """Latest view that the machine received. Thread-safe."""
        self._next_tick = self._clock.now()
        self._last_seen: tuple[bytes, str] = (b"", "")
        self._thread = threading.Thread(target=self._run, name="round", daemon=True)

    def start(self, first: Event | None = None) -> None:
        """Start the thread.

        Args:
            first: Event for the machine before any other one, if any.
        """
        if first is not None:
            self._handle(first)
        self.inbox.is_read = True
        self._thread.start()

    def close(self) -> None:
        """End the thread after the events that wait already."""
        self.inbox.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def read(self, leases: Mapping[str, Lease]) -> None:
        """Take newly read leases of the directory into the machine's next view. Thread-safe."""
        self.inbox.put(lambda: self._take_leases(leases))

    def pass_ended(self) -> None:
        """Tick now, because a pass was counted and a round may be due. Thread-safe."""
        self.inbox.put(self._tick)

    def leave(self) -> None:
        """Ask the round machine to leave the run in order. Thread-safe."""
        self.inbox.put(events.LeaveRequested())

    # ---- the thread

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as failure:  # noqa: BLE001 - the supervisor: the daemon decides
            self.on_failure(failure)

    def _turn(self) -> bool:
        try:
            event = self.inbox.get(timeout=max(self._next_tick - self._clock.now(), 0.0))
        except queue.Empty:
            event = self._tick
        if callable(event):
            event()
        elif isinstance(event, events.Offence):
            self._quarantine(event.peer_id, event.reason)
        elif event is not None:
            self._handle(event)
            if self._clock.now() >= self._next_tick:
                self._tick()
        return event is not None

    def _tick(self) -> None:
        now, worker, machine = self._clock.now(), self.executor.worker, self.machine
        self._next_tick = now + TICK_S
        own = self.executor.shared.sequences_at(machine.head.digest), worker.pass_seconds
        seen = membership_view(self._book, machine.head, machine.me, *own, now)
        self.view = replace(seen, quarantined=self._transport.offenders.held(now))
        worker.update_swarm(count_swarm(machine, self.view))
        self._handle(events.Tick(self.view))

    def _handle(self, event: Event) -> None:
        for action in self.machine.handle(event, self._clock.now()):
            self._carry_out(action)
        now_seen = (self.machine.head.digest, self.machine.phase.value)
        if now_seen != self._last_seen:
            self._last_seen = now_seen
            self.on_change()

    def _take_leases(self, leases: Mapping[str, Lease]) -> None:
        self._book.update(leases, self._clock.now())
        self._tick()

    # ---- actions

    def _carry_out(self, action: Action) -> None:
        match action:
            case events.Send(to, message):
                if not self._transport.send(to, encode(message)):
                    self.inbox.put(events.Unreachable(to))
            case events.Offence(peer_id, reason):
                self._quarantine(peer_id, reason)
            case events.Report(kind, fields):
                if kind not in _AT_WILL or self._complaints.allow(self._clock.now()):
                    self._log.emit(kind, **fields)
            case _:
                self.executor.carry_out(action)

    def _quarantine(self, peer_id: str, reason: Reason) -> None:
        now = self._clock.now()
        seconds = offend(self._transport.offenders, peer_id, reason, now)
        if seconds > 0 and self._complaints.allow(now):
            told = {"peer": peer_id, "reason": reason.value, "seconds": seconds}
            self._log.emit("peer-quarantined", **told)


def membership_view(
    book: LeaseBook, head: Head, me: Voter, sequences: int, pass_seconds: float, now: float
) -> View:
    """Return the view of the swarm for the machine.

    Args:
        book: Leases of all peers.
        head: Our head.
        me: This process.
        sequences: Number of sequences that we have counted at the head.
        pass_seconds: Usual duration of our passes.
        now: Current time.
    """
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
        dead=frozenset(voter for voter in absent if book.is_dead(voter, now)),
        sequences=sequences,
        pass_seconds=pass_seconds,
        mine=mine,
        seen_at=book.updated_at,
    )
