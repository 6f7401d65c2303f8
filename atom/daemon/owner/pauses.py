"""Why this peer stands still: its owner said or wished so, or others have its device, or the
memory of it."""

import threading
from typing import Protocol

from atom.base.clock import Clock
from atom.base.events import EventSink
from atom.daemon.owner.pause_mark import PauseMark

GIVE_BACK_S = 2.0
"""How long a pause waits for the device's memory, before it says that a pass still needs it."""
DEVICE_TAKEN_S = 10.0
"""How often memory that others have is tried for."""
TRYING_S = 1.0
"""How long that may take."""
_OWNER, _WISHES, _TURN = "owner", "wishes", "turn"


class Pausable(Protocol):
    """The part of `atom.training.replica.worker.Worker` that is needed here."""

    device_taken: bool

    def pause(self, reason: str, wait_s: float) -> bool: ...
    def resume(self, reason: str) -> None: ...
    def try_device(self) -> None: ...


class Pauses:
    """Calls come from the control API's threads, `look` from the daemon's main one."""

    def __init__(self, worker: Pausable, events: EventSink, clock: Clock, mark: PauseMark) -> None:
        """`worker` has not started: what its owner paused before computes nothing now either."""
        self._worker, self._events, self._clock = worker, events, clock
        self._mark = mark
        self._lock = threading.Lock()
        self._by_owner = False
        self._wished = ""
        self._others_turn = ""
        self._told = ""
        """By whose word it stands still, as the last event says."""
        self._leaving = False
        self._retry_at: float | None = None
        if mark.stands:
            self._stop()

    def _stop(self) -> bool:
        """Whether the device's memory is free."""
        self._by_owner = True
        free = self._worker.pause(_OWNER, GIVE_BACK_S)
        self._tell()
        return free

    def _tell(self) -> None:
        """An event, if it stands still by another's word now, or by nobody's."""
        standing = _OWNER if self._by_owner else _WISHES if self._wished else ""
        if standing == self._told:
            return
        self._told = standing
        if standing:
            self._events.emit("paused", reason=_OWNER if self._by_owner else self._wished)
        else:
            self._events.emit("resumed")

    @property
    def reason(self) -> str:
        """In a few words; empty: it does not stand still."""
        if self._by_owner:
            return "by its owner, until `atom resume`"
        if self._wished:
            return self._wished
        if self._others_turn:
            return self._others_turn
        if self._retry_at is not None:
            return "another program has the device's memory"
        return ""

    @property
    def wants_device(self) -> bool:
        """Whether its owner lets it work, were the device its alone."""
        return not (self._by_owner or self._wished)

    def pause(self) -> str:
        """The owner's wish; what came of it."""
        with self._lock:
            if self._leaving:
                return "not paused: it is leaving, and sees to what it counted"
            if self._by_owner:
                return f"already paused{self._mark.put()}"
            free, fault = self._stop(), self._mark.put()
        memory = "is free" if free else "will be free when the pass under way ends"
        return (
            "paused: nothing new is trained; what was counted stays, rounds go on; "
            f"the device's memory {memory}{fault}"
        )

    def resume(self) -> str:
        """Also of who leaves, for its next start; what keeps that paused is told in any case."""
        with self._lock:
            fault = self._mark.remove()
            if not self._by_owner:
                said = f"paused {self._wished}: see `atom set`" if self._wished else "not paused"
                return f"{said}{fault}"
            self._by_owner = False
            self._worker.resume(_OWNER)
            self._tell()
        wished, turn = self._wished, self._others_turn
        but = f", but still {wished}: see `atom set`" if wished else f", but {turn}" if turn else ""
        return f"resumed{but}{fault}"

    def wish(self, reason: str) -> None:
        """What the owner's wishes say now: why it is to stand still; empty: it is not."""
        with self._lock:
            before, self._wished = self._wished, "" if self._leaving else reason
            if self._wished and not before:
                self._worker.pause(_WISHES, GIVE_BACK_S)
            elif before and not self._wished:
                self._worker.resume(_WISHES)
            self._tell()

    def end(self) -> None:
        """Whoever leaves sees to what is counted, and stands still no more. Its owner's pause
        holds again from its next start on."""
        with self._lock:
            self._leaving, self._by_owner, self._wished = True, False, ""
            self._told = ""  # that it leaves is an event of its own
            for reason in (_OWNER, _WISHES):
                self._worker.resume(reason)

    def give_device(self, holder: str) -> bool:
        """It is somebody else's turn; whether the device's memory is free by now. To be asked
        again if not. A pass under way is broken off as for any pause."""
        self._others_turn = f"{holder} has the device, until its turn ends"
        return self._worker.pause(_TURN, 0.0)

    def take_device(self) -> None:
        """It is ours."""
        self._others_turn = ""
        self._worker.resume(_TURN)

    def look(self) -> None:
        """Now and then: is the device's memory free again?"""
        now = self._clock.now()
        if not self._worker.device_taken:
            trying = self._retry_at is not None and now < self._retry_at - DEVICE_TAKEN_S + TRYING_S
            self._retry_at = self._retry_at if trying else None
        elif self._retry_at is None:
            self._retry_at = now + DEVICE_TAKEN_S
            self._events.emit("device-taken")
        elif now >= self._retry_at:
            self._retry_at = now + DEVICE_TAKEN_S
            self._worker.try_device()
