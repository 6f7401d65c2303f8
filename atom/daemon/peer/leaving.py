"""A requested leave: until when it may take, whether all that was counted is committed, and whether
others can go on without us."""

import threading
from dataclasses import replace
from typing import Any

from atom.base.clock import Clock
from atom.daemon.peer.lifecycle import Facts

LEAVE_S = 60.0
"""How long a requested leave may take to see the counted work committed."""


class SharedFacts:
    """What is known of a life, read and changed from several threads."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self._lock = threading.Lock()

    def update(self, **changes: Any) -> Facts:
        with self._lock:
            self.facts = replace(self.facts, **changes)
            return self.facts


class Leaving:
    """Asked for from the control API's threads or the daemon's main one, settled on the worker's.
    Who else is stuck without us is known whether or not all is settled: `ending` needs both as of
    one moment."""

    def __init__(self, shared: SharedFacts, clock: Clock) -> None:
        self._shared, self._clock = shared, clock
        self._dropped_before = 0
        self._told = False

    @property
    def asked(self) -> bool:
        return self._shared.facts.leave_by is not None

    def begin(self, deadline_s: float, dropped: int) -> None:
        """`dropped`: sequences that rounds closed without, until now."""
        self._dropped_before = dropped
        self._shared.update(leave_by=self._clock.now() + deadline_s)

    def sooner(self, deadline_s: float | None) -> tuple[bool, float]:
        """Asked again: an earlier deadline holds, a later one does not. Whether this one does, and
        the seconds that are left."""
        now, before = self._clock.now(), self._shared.facts.leave_by
        assert before is not None
        due = before if deadline_s is None else min(before, now + deadline_s)
        if due < before:
            self._shared.update(leave_by=due)
        return due < before, max(due - now, 0.0)

    def settles(self, counted: int, dropped: int) -> bool:
        """Whether nothing of ours, `counted` sequences, is uncommitted any more; once. `dropped`:
        as for `begin`."""
        if dropped > self._dropped_before:
            self._shared.update(work_dropped=True)
        if counted or self._shared.facts.settled_at is not None:
            return False
        self._shared.update(settled_at=self._clock.now())
        return True

    def news(self, facts: Facts) -> str:
        """That it stays for the others' sake; empty: it does not, or that was said."""
        stays = facts.settled_at is not None and facts.others_stuck
        first, self._told = stays and not self._told, stays
        return "leaving as soon as the others can go on without this peer" * first
