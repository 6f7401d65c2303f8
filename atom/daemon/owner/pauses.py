"""The pauses of the owner and of the schedule: set on the peer's gate, and reported as events."""

import threading
from pathlib import Path

from atom.base.errors import StorageError
from atom.base.events import EventSink
from atom.daemon.state_directory import write_atomically
from atom.training.replica.worker import Pause, RunGate

GIVE_BACK_S = 2.0
"""How long a pause waits for the device's memory, before it says that a pass still needs it."""
BY_OWNER = "by its owner, until `atom resume`"


class Pauses:
    """Calls come from the control API's threads, `look` from the daemon's main one."""

    def __init__(self, gate: RunGate, events: EventSink, mark: Path) -> None:
        """`mark`: a file that is there while the owner's pause lasts, whatever is in it, so that it
        outlives the process, a crash and a reboot. No pass has run yet: what its owner paused
        before computes nothing now either."""
        self._gate, self._events = gate, events
        self._mark = mark
        self._lock = threading.Lock()
        self._told = ""
        """Why it stands still, as the last event says."""
        self._leaving = self._taken = False
        if mark.exists():
            self._stop()

    def _stop(self) -> bool:
        """Whether the device's memory is free."""
        free = self._gate.pause(Pause.OWNER, BY_OWNER, GIVE_BACK_S)
        self._tell()
        return free

    def _tell(self) -> None:
        """An event, if it stands still for another reason now, or for none."""
        standing = next((each for each in Pause if self._gate.why_paused(each)), "")
        if standing == self._told:
            return
        self._told = standing
        if standing:
            words = Pause.OWNER.value if self._by_owner else self._gate.why_paused()
            self._events.emit("paused", reason=words)
        else:
            self._events.emit("resumed")

    @property
    def _by_owner(self) -> bool:
        return bool(self._gate.why_paused(Pause.OWNER))

    def pause(self) -> str:
        """The owner's wish; what came of it."""
        with self._lock:
            if self._leaving:
                return "not paused: it is leaving, and sees to what it counted"
            if self._by_owner:
                return f"already paused{self._put_mark()}"
            free, fault = self._stop(), self._put_mark()
        memory = "is free" if free else "will be free when the pass under way ends"
        return (
            "paused: nothing new is trained; what was counted stays, rounds go on; "
            f"the device's memory {memory}{fault}"
        )

    def resume(self) -> str:
        """Also of a peer that leaves, for its next start; what keeps it paused is told in any
        case."""
        wished = self._gate.why_paused(Pause.SCHEDULE)
        with self._lock:
            fault = self._remove_mark()
            if not self._by_owner:
                return f"{f'paused {wished}: see [schedule]' if wished else 'not paused'}{fault}"
            self._gate.resume(Pause.OWNER)
            self._tell()
        return f"resumed{wished and f', but still {wished}: see [schedule]'}{fault}"

    def wish(self, reason: str) -> None:
        """Pause for a `reason` of the owner's schedule; an empty one ends that pause."""
        schedule = Pause.SCHEDULE
        with self._lock:
            before, wished = self._gate.why_paused(schedule), not self._leaving and reason
            if wished and wished != before:
                self._gate.pause(schedule, wished, 0.0 if before else GIVE_BACK_S)
            elif before and not wished:
                self._gate.resume(schedule)
            self._tell()

    def end(self) -> None:
        """A peer that leaves sees to what is counted, and stands still no more. Its owner's pause
        holds again from its next start on."""
        with self._lock:
            self._leaving = True
            self._told = ""  # that it leaves is an event of its own
            self._gate.resume(*Pause)

    def look(self) -> None:
        """Now and then: an event, if another program has the device's memory now."""
        before, self._taken = self._taken, self._gate.device_taken
        if self._taken and not before:
            self._events.emit("device-taken")

    def _put_mark(self) -> str:
        """Empty, or in words what a disk that takes nothing means."""
        try:
            write_atomically(self._mark, b"`atom resume` removes this\n")
        except StorageError as problem:
            return f"; a restart would end this, {problem.message}"
        return ""

    def _remove_mark(self) -> str:
        """As `_put_mark`."""
        try:
            if self._mark.exists():  # a disk that takes no writes refuses what is not there, too
                self._mark.unlink(missing_ok=True)
        except OSError as problem:
            return f"; a restart would be paused, cannot remove {self._mark}: {problem.strerror}"
        return ""
