"""States of a peer as other peers see them, requests to leave, and the decision to end.

    starting → syncing → accumulating → reducing → stepping → accumulating → … → leaving → left

A paused peer keeps its counted work and goes on voting. A leaving peer first waits until its
counted work is committed and the other peers can go on without it. The decisions are pure functions
of `Facts`, and `Life` holds the current facts.
"""

import math
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

HANG_UP = "SIGHUP"
"""Signal that requests a graceful leave; neither it nor the next signal forces an exit.

When a terminal is closed, the kernel sends SIGHUP, the shell sends it again, and the program that
ends the login's processes sends SIGTERM. The user has asked only once.
"""
LINGER_S = 10.0
"""Longest time that a peer stays after its end, so that others can fetch the last round from it."""

HEEDED_S, LONGEST_HEEDED_S = 30.0, 600.0
"""Limits of how long claims of a better head keep a new peer from work, from its first look at the
swarm: for HEEDED_S any claim does, until LONGEST_HEEDED_S only claims of peers that it did not ask
in vain recently, and later none. A lease costs nothing and may claim anything."""

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
    """Some counted work was lost: the deadline came first, or a round closed without it."""
    MONTH_USED = "month-used"
    """The month's traffic allowance is used up, so the peer does not start before next month."""


_WORDS = {
    Ending.ROUNDS_REACHED: "the run is finished; `atom export FOLDER` writes the model",
    Ending.LEFT: "left; all counted work is committed",
    Ending.LEFT_LATE: (
        "left, but some counted work is lost: no round committed it before the deadline, or one "
        "closed without it"
    ),
    Ending.MONTH_USED: "left, because the traffic allowance is used up; start again next month",
}


@dataclass(frozen=True)
class Facts:
    """Facts about a peer from which its state and its end follow.

    Times are seconds of the daemon's monotonic clock.
    """

    phase: Phase
    now: float
    started: bool = False
    """True once the leases were read and no peer that can be believed is ahead of us."""
    paused: bool = False
    leave_by: float | None = None
    """Deadline of a requested leave; None: no leave is requested."""
    sequences: int = 0
    """Sequences that we counted and no commit contains yet."""
    finished_at: float | None = None
    """Time at which the run's last round was committed here."""
    is_seed: bool = False
    """True if the peer stays after the end of the run ([network] seed)."""
    laggards: int = 0
    """Number of peers with a fresh lease whose head is neither ours nor better."""
    work_dropped: bool = False
    """True if, since the request to leave, counted work of ours was lost."""
    settled_at: float | None = None
    """Time at which, after the request to leave, no uncommitted work of ours was left."""
    others_stuck: bool = False
    """True if the peers that stay could decide no round without us."""
    gone: bool = False
    """True if the peer has left."""


def peer_state(facts: Facts) -> PeerState:
    """Return the state that the peer's lease announces."""
    state = PeerState.LEFT if facts.gone else _STATE_OF_PHASE[facts.phase]
    if state is not PeerState.ACCUMULATING:
        return state
    if not facts.started:
        return PeerState.STARTING
    if facts.leave_by is not None:
        return PeerState.LEAVING
    return PeerState.PAUSED if facts.paused else PeerState.ACCUMULATING


def ending(facts: Facts) -> Ending | None:
    """Return why the peer should end now; None if it should go on."""
    busy = facts.phase not in (Phase.ACCUMULATING, Phase.SYNCING)
    if facts.finished_at is not None and not busy and not facts.is_seed:
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


def ending_note(verdict: Ending, last_round: int, loss: float | None = None) -> str:
    """Return the line for the owner that says why the peer ended.

    Args:
        verdict: why it ended.
        last_round: number of the last round.
        loss: loss of that round; None: unknown.
    """
    reached = "" if loss is None else f", loss {loss:.4f}"
    return f"ended at round {last_round}{reached}: {_WORDS[verdict]}"


def _left(facts: Facts) -> Ending:
    lost = facts.sequences > 0 or facts.work_dropped
    return Ending.LEFT_LATE if lost else Ending.LEFT


LEAVE_S = 60.0
"""Default deadline of a leave: longest wait until the counted work is committed."""


class Life:
    """Current facts about a peer, changed atomically by the main thread and the control API's."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self.facts = Facts(Phase.SYNCING, clock.now())
        self.stands_by = False
        """True while the peer leaves because the month's traffic allowance is used up."""
        self._stay_was_said = False
        self._may_insist = True
        self._looked_since = math.inf

    def update(self, **changes: Any) -> Facts:
        """Change fields of the facts, and return the new facts as of now. Thread-safe."""
        with self._lock:
            self.facts = replace(self.facts, now=self._clock.now(), **changes)
            return self.facts

    @property
    def leaves(self) -> bool:
        """True once a leave is requested."""
        return self.facts.leave_by is not None

    def leave(self, deadline_s: float) -> None:
        """Request a leave. The peer ends after `deadline_s` seconds in any case."""
        self.update(leave_by=self._clock.now() + deadline_s)

    def leave_sooner(self, deadline_s: float | None) -> tuple[bool, float]:
        """Move the deadline of a requested leave, but only to an earlier time.

        Args:
            deadline_s: seconds from now; None: keep the deadline.

        Returns:
            (whether the deadline was moved, seconds until the deadline).
        """
        now, before = self._clock.now(), self.facts.leave_by
        assert before is not None
        due = before if deadline_s is None else min(before, now + deadline_s)
        if due < before:
            self.update(leave_by=due)
        return due < before, max(due - now, 0.0)

    def settled(self) -> None:
        """Note that a leaving peer has no uncommitted work left."""
        if self.facts.settled_at is None:
            self.update(settled_at=self._clock.now())

    def finished(self) -> bool:
        """Note that the run's last round is committed here. Return True the first time."""
        is_first = self.facts.finished_at is None
        if is_first:
            self.update(finished_at=self._clock.now())
        return is_first

    def insists(self, signal_name: str) -> bool:
        """Return True if this signal asks a leaving peer to end at once."""
        insists = signal_name != HANG_UP and self._may_insist
        self._may_insist = signal_name != HANG_UP
        return insists

    def may_begin(self, ahead: int, believed: int) -> bool:
        """Return True if this new peer may begin to work although it may be behind.

        Args:
            ahead: number of peers that claim a better head.
            believed: number of these peers whose claims are not doubted now.
        """
        facts, heeded_s = self.facts, LONGEST_HEEDED_S if believed else HEEDED_S
        self._looked_since = min(self._looked_since, facts.now)
        waited_s = facts.now - self._looked_since
        return ahead == 0 or (facts.phase is not Phase.SYNCING and waited_s >= heeded_s)

    def stays_for_others(self) -> str:
        """Return a line for the owner, once, when only the other peers' need delays the leave.

        Returns:
            The line; empty if there is no such delay, or the owner has read it.
        """
        stays = self.facts.settled_at is not None and self.facts.others_stuck
        first, self._stay_was_said = stays and not self._stay_was_said, stays
        return "leaving as soon as the other peers can continue without this peer" * first


@contextmanager
def noted_signals() -> Iterator[list[int]]:
    """Collect the numbers of SIGINT, SIGTERM and SIGHUP that arrive in this context.

    The caller polls the list. The handler must not wake the caller: it interrupts the main thread
    anywhere, and would wait forever for a lock that the main thread holds. On other threads the
    list stays empty.
    """
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return
    with ending_signals(lambda number, frame: noted.append(number)):
        yield noted
