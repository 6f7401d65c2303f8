"""A peer's life as others see it, how it is told to leave, and when it ends.

    starting → syncing → accumulating → reducing → stepping → accumulating → … → leaving → left

Pausing keeps what was counted and goes on voting; leaving first sees the counted work committed,
and that others can go on. What is decided of facts is pure; `Life` holds them.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from atom.base.clock import Clock
from atom.daemon.console import ending_signals
from atom.swarm.records.lease import PeerState
from atom.training.round.events import Phase

LINGER_S = 10.0
"""At the end a peer stays this long at most, for others to fetch the last round from it."""

HEEDED_S, LONGEST_HEEDED_S = 30.0, 600.0
"""For so long after its first look around, a peer lets every claim of a better head keep it from
work; then only those that it has not asked in vain lately, and in the end none: a lease is free,
and claims what it likes."""

_STATE_OF_PHASE = {
    Phase.ACCUMULATING: PeerState.ACCUMULATING,
    Phase.PROMISED: PeerState.REDUCING,
    Phase.REDUCING: PeerState.REDUCING,
    Phase.HOLDING: PeerState.REDUCING,
    Phase.STEPPING: PeerState.STEPPING,
    Phase.SYNCING: PeerState.SYNCING,
}


class Ending(StrEnum):
    """Why a daemon ended by its own decision."""

    ROUNDS_REACHED = "rounds-reached"
    LEFT = "left"
    LEFT_LATE = "left-late"
    """Counted work was given up: the deadline came first, or a round closed without it."""
    MONTH_USED = "month-used"
    """The line's allowance of this month is used up: until the next one no start is accepted."""


_WORDS = {
    Ending.ROUNDS_REACHED: "the run is finished; `atom export FOLDER` writes the model",
    Ending.LEFT: "left, and nothing that was counted is lost",
    Ending.LEFT_LATE: (
        "left, and some of what was counted is lost: no round took it before the deadline, or one "
        "closed without it"
    ),
    Ending.MONTH_USED: "left, for its line may carry no more; start it again when it may",
}


@dataclass(frozen=True)
class Facts:
    """What the decision rests on. Times are seconds of the daemon's clock."""

    phase: Phase
    now: float
    started: bool = False
    """We have looked around, and nobody is ahead of us, as far as can be found out."""
    paused: bool = False
    leave_by: float | None = None
    """Deadline of a requested leave."""
    sequences: int = 0
    """Counted and not yet committed."""
    finished_at: float | None = None
    """When the run's last round was committed here."""
    laggards: int = 0
    """Fresh peers of this run whose head is not ours."""
    work_dropped: bool = False
    """A round closed without work that we had counted when asked to leave."""
    settled_at: float | None = None
    """When nothing of ours was left uncommitted, after the leave was requested."""
    others_stuck: bool = False
    """Nobody that stays could decide a round without us; looked at from the beginning, since what
    we counted is settled on another thread."""


def peer_state(facts: Facts) -> PeerState:
    """What the lease says."""
    state = _STATE_OF_PHASE[facts.phase]
    if state is not PeerState.ACCUMULATING:
        return state
    if not facts.started:
        return PeerState.STARTING
    if facts.leave_by is not None:
        return PeerState.LEAVING
    return PeerState.PAUSED if facts.paused else PeerState.ACCUMULATING


def may_begin(ahead: int, believed: int, phase: Phase, waited_s: float) -> bool:
    """Whether work begins: nobody is `ahead`, or nobody who is `believed` just now. `waited_s`:
    since the first look around."""
    heeded_s = LONGEST_HEEDED_S if believed else HEEDED_S
    return ahead == 0 or (phase is not Phase.SYNCING and waited_s >= heeded_s)


def ending(facts: Facts) -> Ending | None:
    """Whether to end now, and why; None: live on."""
    busy = facts.phase not in (Phase.ACCUMULATING, Phase.SYNCING)
    if facts.finished_at is not None and not busy:
        waited = facts.now - facts.finished_at
        if facts.laggards == 0 or waited >= LINGER_S:
            return Ending.ROUNDS_REACHED
    if facts.leave_by is None:
        return None
    if facts.settled_at is not None and not busy and not facts.others_stuck:
        waited = facts.now - facts.settled_at
        if facts.laggards == 0 or waited >= LINGER_S:
            return _left(facts)
    return _left(facts) if facts.now >= facts.leave_by else None


def ending_note(verdict: Ending, last_round: int) -> str:
    """What its owner reads."""
    return f"ended at round {last_round}: {_WORDS[verdict]}"


def _left(facts: Facts) -> Ending:
    lost = facts.sequences > 0 or facts.work_dropped
    return Ending.LEFT_LATE if lost else Ending.LEFT


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


@contextmanager
def noted_signals() -> Iterator[list[int]]:
    """Numbers of the signals that arrive meanwhile, for who looks now and then. The handler wakes
    nobody: it runs within whatever the main thread does, and would wait for ever for a lock of
    that. Elsewhere than on the main thread none arrives.
    """
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return
    with ending_signals(lambda number, frame: noted.append(number)):
        yield noted
