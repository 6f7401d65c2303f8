"""The pauses of the owner and of the schedule: set on the peer's gate, and reported as events."""

import threading
from pathlib import Path

from atom.base.errors import StorageError
from atom.base.events import EventSink
from atom.daemon.state_directory import write_atomically
from atom.training.replica.worker import Pause, RunGate

GIVE_BACK_S = 2.0
"""Longest wait of a pause for the device's memory, which a running pass may still need."""
BY_OWNER = "by its owner, until `atom resume`"


class Pauses:
    """Pauses of the owner and of the schedule, reported as events when they begin or end.

    Thread-safe, except that only the daemon's main thread calls `look`.
    """

    def __init__(self, gate: RunGate, events: EventSink, mark: Path) -> None:
        """Continue the owner's pause if an earlier process left its mark. Call before any pass.

        Args:
            gate: the peer's gate, which keeps passes from the device.
            events: gets `paused`, `resumed` and `device-taken`.
            mark: file that exists while the owner's pause lasts, with any content, so that the
                pause outlives a crash and a reboot.
        """
        self._gate, self._events = gate, events
        self._mark = mark
        self._lock = threading.Lock()
        self._told = ""
        """Kind of pause in the last event; empty if there is none."""
        self._leaving = self._taken = False
        if mark.exists():
            self._stop()

    def _stop(self) -> bool:
        """Begin the owner's pause. Return True if the device's memory was freed in time."""
        free = self._gate.pause(Pause.OWNER, BY_OWNER, GIVE_BACK_S)
        self._tell()
        return free

    def _tell(self) -> None:
        """Emit an event if the kind of pause has changed since the last one."""
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
        """Begin the owner's pause, and return the outcome as text for the owner."""
        with self._lock:
            if self._leaving:
                return "not paused: the peer is leaving, and its counted work comes first"
            if self._by_owner:
                return f"already paused{put_mark(self._mark)}"
            free, fault = self._stop(), put_mark(self._mark)
        memory = "is free" if free else "will be free at the end of the current pass"
        return (
            "paused: no new passes; counted work is kept, rounds continue; "
            f"the device's memory {memory}{fault}"
        )

    def resume(self) -> str:
        """End the owner's pause, and return the outcome as text for the owner.

        A leaving peer removes the mark, too, for its next start. The text names the schedule's
        pause if that goes on.
        """
        wished = self._gate.why_paused(Pause.SCHEDULE)
        with self._lock:
            fault = remove_mark(self._mark)
            if not self._by_owner:
                return f"{f'paused {wished}: see [schedule]' if wished else 'not paused'}{fault}"
            self._gate.resume(Pause.OWNER)
            self._tell()
        return f"resumed{wished and f', but still {wished}: see [schedule]'}{fault}"

    def wish(self, reason: str) -> None:
        """Begin, change or end the schedule's pause.

        Args:
            reason: reason of the schedule, for the owner; empty to end the pause.
        """
        schedule = Pause.SCHEDULE
        with self._lock:
            before, wished = self._gate.why_paused(schedule), not self._leaving and reason
            if wished and wished != before:
                self._gate.pause(schedule, wished, 0.0 if before else GIVE_BACK_S)
            elif before and not wished:
                self._gate.resume(schedule)
            self._tell()

    def end(self) -> None:
        """End all pauses because the peer leaves, for which it must finish its counted work.

        The owner's pause holds again after the next start, because its mark stays.
        """
        with self._lock:
            self._leaving = True
            self._told = ""  # no `resumed` event: `leaving` is emitted instead
            self._gate.resume(*Pause)

    def look(self) -> None:
        """Emit an event if another program has newly taken the device's memory. Called often."""
        before, self._taken = self._taken, self._gate.device_taken
        if self._taken and not before:
            self._events.emit("device-taken")


def put_mark(mark: Path) -> str:
    """Write the mark. Return text for the owner if the disk refuses, else an empty string."""
    try:
        write_atomically(mark, b"`atom resume` removes this\n")
    except StorageError as problem:
        return f"; a restart would end the pause: {problem.message}"
    return ""


def remove_mark(mark: Path) -> str:
    """Remove the mark. Return text for the owner if the disk refuses, else an empty string."""
    try:
        if mark.exists():  # a read-only disk refuses to remove even an absent file
            mark.unlink(missing_ok=True)
    except OSError as problem:
        return f"; a restart would be paused: cannot remove {mark}: {problem.strerror}"
    return ""
