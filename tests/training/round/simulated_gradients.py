"""A simulated process's gradients: the passes that add to them, and their standing still.

With a rule that overlaps, passes go on beyond what is offered, and what no round has taken counts
for the next.
"""

from collections.abc import Set
from typing import TYPE_CHECKING

from simulated_ring import Work

from atom.swarm.chain.commit import Head
from atom.training.replica.pacing import SwarmCount, next_pass
from atom.training.round.events import Freeze, Frozen, Phase

if TYPE_CHECKING:
    from simulated_peer import Process


class Gradients:
    """Names of works instead of numbers: a sum tells whose it is made of, and how often."""

    def __init__(self, process: "Process") -> None:
        self._process = process
        self.head = process.chain.head.digest
        """What they were computed at, and are good for."""
        self.works: list[Work] = []
        self.offered: tuple[Work, ...] = ()
        """What a ring may read while they are frozen."""
        self.frozen = False
        self._overlaps = process.swarm.setting.overlaps
        self._stands = False
        """No pass runs until they are thawed."""
        self.swarm = SwarmCount()
        self._freezing: Freeze | None = None
        self._passing = False
        self._last_pass_ended = float("-inf")
        self._work_number = 0

    @property
    def sequences(self) -> int:
        return len(self.works) * self._process.seat.pass_sequences

    def start_pass(self) -> None:
        """If one is due, and none is under way."""
        process = self._process
        if not self._passing and not self._stands and not process.paused and self._lacks():
            self._passing = True
            head = self.head
            process.later(process.seat.pass_seconds, lambda: self._end_pass(head))

    def freeze(self, freeze: Freeze) -> None:
        """After the pass that is under way."""
        assert self._process.ring is None, "frozen anew under a running ring"
        self._freezing = freeze
        if not self._passing:
            self._report_frozen()

    def thaw(self) -> None:
        self.frozen, self._freezing, self.offered, self._stands = False, None, (), False
        self.start_pass()

    def drop(self, head: Head, taken: Set[Work] | None = None) -> None:
        """From now on they are of `head`, and there are none; with a rule that overlaps those that
        were not `taken`, if the state was stepped to it."""
        rest = self.works if self._overlaps and taken is not None else []
        self.works = [work for work in rest if work not in (taken or ())]
        self.head = head.digest

    def _lacks(self) -> bool:
        """Whether the worker of a real peer would train on."""
        process = self._process
        if process.leaving and not self.works:
            return False
        policy, own_pass = process.machine.policy, process.seat.pass_sequences
        swarm = SwarmCount(peers=self.swarm.peers) if self.offered else self.swarm
        counted = self.sequences - len(self.offered) * own_pass
        return next_pass(counted, self._last_pass_ended, swarm, policy, own_pass, 1) > 0

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
