"""A simulated process's gradients: the passes that add to them, and their standing still."""

from typing import TYPE_CHECKING

from simulated_ring import Work

from atom.swarm.chain.commit import Ballot, Head
from atom.training.replica.pacing import SwarmCount, next_pass
from atom.training.round.events import Frozen, Phase

if TYPE_CHECKING:
    from simulated_peer import Process


class Gradients:
    """Names of works instead of numbers: a sum tells whose it is made of, and how often."""

    def __init__(self, process: "Process") -> None:
        self._process = process
        self.head = process.chain.head.digest
        """What they were computed at, and are good for."""
        self.works: list[Work] = []
        self.frozen = False
        self.swarm = SwarmCount()
        self._freezing: Ballot | None = None
        self._passing = False
        self._last_pass_ended = float("-inf")
        self._work_number = 0

    @property
    def sequences(self) -> int:
        return len(self.works) * self._process.seat.pass_sequences

    def start_pass(self) -> None:
        """If one is due, and none is under way."""
        process = self._process
        if not self._passing and not self.frozen and not process.paused and self._lacks():
            self._passing = True
            head = self.head
            process.later(process.seat.pass_seconds, lambda: self._end_pass(head))

    def freeze(self, ballot: Ballot) -> None:
        """After the pass that is under way."""
        assert self._process.ring is None, "frozen anew under a running ring"
        self._freezing = ballot
        if not self._passing:
            self._report_frozen()

    def thaw(self) -> None:
        self.frozen, self._freezing = False, None
        self.start_pass()

    def drop(self, head: Head) -> None:
        """From now on they are of `head`, and there are none."""
        self.works.clear()
        self.head = head.digest

    def _lacks(self) -> bool:
        """Whether the worker of a real peer would train on."""
        process = self._process
        if process.leaving and not self.works:
            return False
        policy, own_pass = process.machine.policy, process.seat.pass_sequences
        return next_pass(self.sequences, self._last_pass_ended, self.swarm, policy, own_pass, 1) > 0

    def _end_pass(self, head: bytes) -> None:
        process = self._process
        self._passing = False
        self._last_pass_ended = process.now()
        useful = head == self.head == process.machine.head.digest
        if useful and process.machine.phase is not Phase.SYNCING:
            assert not self.frozen, "counting went on while frozen"
            assert process.ring is None, "counting went on under a ring"
            self._work_number += 1
            self.works.append((process.peer_id, process.me.incarnation, self._work_number))
        if self._freezing is not None:
            self._report_frozen()
        else:
            self.start_pass()

    def _report_frozen(self) -> None:
        process = self._process
        assert self._freezing is not None
        self.frozen = True
        event = Frozen(self._freezing, self.sequences, float(self.sequences))
        process.later(process.dice.uniform(0.0, 0.05), lambda: process.handle(event))
