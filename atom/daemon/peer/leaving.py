"""A requested leave: until when it may take, whether all that was counted is committed, and whether
others can go on without us."""

import threading
from dataclasses import replace
from typing import Any

from atom.base.clock import Clock
from atom.daemon.peer.lifecycle import Facts
from atom.training.round.events import Phase

LEAVE_S = 60.0
"""How long a requested leave may take to see the counted work committed."""


class Life:
    """The facts that its end is decided by: changed by the daemon's main thread, the control API's
    and the worker's, each time as one step.

    A leave is asked for on the first two and settled on the last. Who else is stuck without us is
    known whether or not all is settled: `ending` needs both as of one moment.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self.facts = Facts(Phase.SYNCING, clock.now())
        self._dropped_before = 0
        self._told = False

    def update(self, **changes: Any) -> Facts:
        with self._lock:
            self.facts = replace(self.facts, now=self._clock.now(), **changes)
            return self.facts

    @property
    def leaves(self) -> bool:
        return self.facts.leave_by is not None

    def leave(self, deadline_s: float, dropped: int) -> None:
        """`dropped`: sequences that rounds closed without, until now."""
        self._dropped_before = dropped
        self.update(leave_by=self._clock.now() + deadline_s)

    def leave_sooner(self, deadline_s: float | None) -> tuple[bool, float]:
        """Asked again: an earlier deadline holds, a later one does not. Whether this one does, and
        the seconds that are left."""
        now, before = self._clock.now(), self.facts.leave_by
        assert before is not None
        due = before if deadline_s is None else min(before, now + deadline_s)
        if due < before:
            self.update(leave_by=due)
        return due < before, max(due - now, 0.0)

    def settles(self, counted: int, dropped: int) -> bool:
        """Whether nothing of ours, `counted` sequences, is uncommitted any more; once. `dropped`:
        as for `leave`."""
        if dropped > self._dropped_before:
            self.update(work_dropped=True)
        if counted or self.facts.settled_at is not None:
            return False
        self.update(settled_at=self._clock.now())
        return True

    def stays_for_others(self) -> str:
        """That it does, in words; empty: it does not, or that was said."""
        stays = self.facts.settled_at is not None and self.facts.others_stuck
        first, self._told = stays and not self._told, stays
        return "leaving as soon as the others can go on without this peer" * first
