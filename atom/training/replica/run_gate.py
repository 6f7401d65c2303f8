"""Whether this peer computes now, and why not: the one object that everybody asks."""

import threading
from collections.abc import Callable
from enum import StrEnum

from atom.training.replica.engines import ReplicaEngines

STARTING = "starting"
"""Holds every peer until it has looked around."""


class Pause(StrEnum):
    """What keeps a peer away from its device. The first that stands is the one that is told."""

    OWNER = "owner"
    SCHEDULE = "schedule"
    """Hours, battery or programs of the owner's, as the peer file wishes."""
    TURN = "turn"
    """Another run has the device."""


class RunGate:
    """Three kinds of reason to compute nothing:

    - *held*: something of the round's, or of the peer's life, is under way. Takes effect between
      passes and keeps the device's memory.
    - *paused*: somebody else is to have the device. The pass under way is broken off if nothing
      counted is lost with it, and the device's memory is given back.
    - *device taken*: the memory was given back, and another program has it now.

    Reasons are kept as a set each, so they may come and go in any order.
    """

    def __init__(self, engines: ReplicaEngines, wake: Callable[[], None]) -> None:
        """`engines`: whose memory pauses give back. `wake`: called when a pause has gone."""
        self._engines = engines
        self._wake = wake
        self._lock = threading.Lock()
        self._holds: set[str] = {STARTING}
        self._pauses: dict[Pause, str] = {}
        self.device_taken = False
        """Another program has the memory. Said by the thread that runs passes."""

    # ---- reasons

    def hold(self, reason: str) -> None:
        """No pass until `release(reason)`. On the thread that runs passes."""
        self._holds.add(reason)

    def release(self, reason: str) -> None:
        """On the thread that runs passes."""
        self._holds.discard(reason)

    def pause(self, reason: Pause, words: str, wait_s: float) -> bool:
        """Nothing on the device until `resume(reason)`. From any thread.

        Args:
            words: why, for people.
            wait_s: how long to wait for the device's memory.

        Returns: whether it was free within that time; a pass that may not be broken off needs it
        until its end.
        """
        with self._lock:
            self._pauses[reason] = words
            return self._engines.preempt(wait_s)

    def resume(self, *reasons: Pause) -> None:
        """From any thread."""
        with self._lock:
            for reason in reasons:
                self._pauses.pop(reason, None)
            if not self._pauses:
                self._engines.resume()
        self._wake()

    # ---- answers, from any thread

    def why_paused(self, *reasons: Pause) -> str:
        """The words of the first of `reasons` that stands; empty: none does."""
        return next((self._pauses[one] for one in reasons if one in self._pauses), "")

    @property
    def why_not(self) -> str:
        """Why nothing is computed, however much there is to do, in a few words; empty: it is. What
        holds it for a moment is not told."""
        taken = "another program has the device's memory" if self.device_taken else ""
        return self.why_paused(*Pause) or taken

    @property
    def paused(self) -> bool:
        """Is the device to be left alone?"""
        return bool(self._pauses)

    @property
    def held(self) -> bool:
        """Is it a moment of the round's, or of the peer's life, without passes?"""
        return bool(self._holds)
