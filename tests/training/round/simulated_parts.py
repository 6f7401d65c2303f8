"""Parts of a simulated process beside its machine: count, look around, fetch, and leave."""

from collections.abc import Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulated_ring import Work

from atom.daemon.peer.lifecycle import LEAVE_S, Facts, ending, peer_state
from atom.swarm.chain.commit import Head
from atom.swarm.records.lease import (
    RENEW_SECONDS,
    SHOWN,
    Lease,
    LeaseBook,
    PeerState,
    Reached,
    claims_better,
)
from atom.training.loop import membership_view
from atom.training.replica.pacing import SwarmCount, next_pass
from atom.training.round.electorate import leaves_them_stuck
from atom.training.round.events import FetchResult, Freeze, Frozen, Phase, ResultFetched, View
from atom.training.round_executor import HASTE_S, PATIENCE_S, PAUSE_S

if TYPE_CHECKING:
    from simulated_peer import Process

READ_SECONDS = 0.9
SILENT_HOLDER_SECONDS = (5.0, 11.0)
"""How long a holder that is frozen or cut off is waited for."""


class Gradients:
    """Passes that add to gradients, and their pauses. Names of works replace numbers, so a sum
    shows its parts and how often it has each. With a rule that overlaps, passes continue beyond
    the offer, and work that no round took counts for the next."""

    def __init__(self, process: "Process") -> None:
        self._process = process
        self.head = process.chain.head.digest
        """Digest of the head that the gradients belong to."""
        self.works: list[Work] = []
        self.offered: tuple[Work, ...] = ()
        """Works that an exchange may read while the gradients are frozen."""
        self.frozen = False
        self._overlaps = process.swarm.setting.overlaps
        self._stands = False
        """True while no pass may run, until the gradients are thawed."""
        self.swarm = SwarmCount()
        self._freezing: Freeze | None = None
        self._passing = False
        self._last_pass_ended = float("-inf")
        self._work_number = 0

    @property
    def sequences(self) -> int:
        return len(self.works) * self._process.seat.pass_sequences

    def start_pass(self) -> None:
        """Start a pass if one is due and none is under way."""
        process = self._process
        if not self._passing and not self._stands and not process.paused and self._lacks():
            self._passing = True
            head = self.head
            process.later(process.seat.pass_seconds, lambda: self._end_pass(head))

    def freeze(self, freeze: Freeze) -> None:
        """After the pass that is under way."""
        self._freezing = freeze
        if not self._passing:
            self._report_frozen()

    def thaw(self) -> None:
        self.frozen, self._freezing, self.offered, self._stands = False, None, (), False
        self.start_pass()

    def drop(self, head: Head, taken: Set[Work] | None = None) -> None:
        """Start again at `head` without gradients; with a rule that overlaps, keep the gradients
        that were not `taken`, if the state was stepped to `head`."""
        rest = self.works if self._overlaps and taken is not None else []
        self.works = [work for work in rest if work not in (taken or ())]
        self.head = head.digest

    def _lacks(self) -> bool:
        """Return True if the worker of a real peer would train on."""
        process = self._process
        if process.leaving and not self.works:
            return False
        batch, own_pass = process.machine.global_batch, process.seat.pass_sequences
        swarm = SwarmCount(peers=self.swarm.peers) if self.offered else self.swarm
        counted = self.sequences - len(self.offered) * own_pass
        return next_pass(counted, self._last_pass_ended, swarm, batch, own_pass, 1) > 0

    def _end_pass(self, head: bytes) -> None:
        process = self._process
        self._passing = False
        self._last_pass_ended = process.now()
        useful = head == self.head == process.machine.head.digest
        if useful and process.machine.phase is not Phase.SYNCING:
            assert self._overlaps or not self.frozen, "counting went on while frozen"
            assert self._overlaps or process.ring is None, "counting went on under a ring"
            self._work_number += 1
            self.works.append((process.peer_id, process.me.incarnation, self._work_number))
        if self._freezing is not None:
            self._report_frozen()
        else:
            self.start_pass()

    def _report_frozen(self) -> None:
        process = self._process
        freeze, self._freezing = self._freezing, None
        assert freeze is not None
        self.frozen, self.offered = True, tuple(self.works)
        self._stands = not (self._overlaps and freeze.goes_on)
        event = Frozen(freeze.ballot, self.sequences, float(self.sequences))
        process.later(process.dice.uniform(0.0, 0.05), lambda: process.handle(event))
        self.start_pass()


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
        if (reading := self._directory.read(process.peer_id, process.now())) is not None:
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
        process = self._process
        leave_by = process.now() if process.leaving else None
        phase = process.machine.phase
        return peer_state(Facts(phase, process.now(), True, process.paused, leave_by))

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
            reached=Reached.NO if process.seat.hidden else Reached.UNKNOWN,
        )
        self._directory.publish(lease, now)


@dataclass(frozen=True)
class Fetch:
    """One result, asked for until it is there or the time for that is over."""

    process: "Process"
    wanted: FetchResult

    def start(self) -> None:
        process, digest = self.process, self.wanted.digest
        own = process.results.get(digest)  # a catch-up in vain leaves it in memory
        if own is not None:
            process.later(0.01, lambda: self.deliver(own.norm))
            return
        until = process.now() + (PATIENCE_S if self.wanted.committed else HASTE_S)
        process.later(process.dice.uniform(0.05, 0.4), lambda: self.try_holders(until))

    def deliver(self, norm: float) -> None:
        self.process.handle(ResultFetched(self.wanted.digest, in_memory=True, norm=norm))

    def try_holders(self, until: float) -> None:
        """Ask all holders at once, so that one that gives it spares the wait for silent ones."""
        process, swarm = self.process, self.process.swarm
        digest, holders = self.wanted.digest, self.wanted.holders
        there = [swarm.reachable(process.peer_id, holder) for holder in holders]
        for other in there:
            if other is not None and digest in other.results:
                process.results[digest] = other.results[digest]
                self.deliver(other.results[digest].norm)
                return
        if any(swarm.silent(process.peer_id, holder) for holder in holders):
            delay = process.dice.uniform(*SILENT_HOLDER_SECONDS)
            process.later(delay, lambda: process.handle(ResultFetched(digest, in_memory=False)))
        elif process.now() >= until:
            process.handle(ResultFetched(digest, in_memory=False))
        else:
            process.later(PAUSE_S, lambda: self.try_holders(until))


class Goodbye:
    """Goodbye of a process that was asked to leave: it goes when a daemon would go."""

    def __init__(self, process: "Process") -> None:
        self._process = process
        self._leave_by: float | None = None
        self._settled_at: float | None = None

    @property
    def asked(self) -> bool:
        return self._leave_by is not None

    def ask(self) -> None:
        self._leave_by = self._process.now() + LEAVE_S

    def is_over(self, view: View) -> bool:
        """Return True if the process goes now."""
        if self._leave_by is None:
            return False
        process, head = self._process, self._process.machine.head
        if self._settled_at is None and not process.sequences:
            self._settled_at = process.now()
        others = [lease for lease in view.fresh.values() if lease.head != head.digest]
        facts = Facts(
            phase=process.machine.phase,
            now=process.now(),
            leave_by=self._leave_by,
            sequences=process.sequences,
            settled_at=self._settled_at,
            laggards=sum(not claims_better(lease, head) for lease in others),
            others_stuck=leaves_them_stuck(head, process.me, view),
        )
        return ending(facts) is not None
