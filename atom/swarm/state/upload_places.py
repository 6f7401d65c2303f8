"""Who is served at the same time, when more ask than a donor has places. Thread-safe.

Every peer has a few places at most. When all are taken, the one that has asked for nothing for
the longest gives its own to whoever comes: its channel is closed, and it may come again.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from atom.swarm.stream.frames import Channel


@dataclass
class _Place:
    channel: Channel
    idle_since: float | None
    """None while it is being answered."""


class UploadPlaces:
    """The places of one donor."""

    def __init__(
        self,
        places: int = 16,
        per_peer: int = 4,
        idle_s: float = 1.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`idle_s`: so long anybody may take until it asks for something."""
        self._places, self._per_peer = places, per_peer
        self._idle_s, self._now = idle_s, now
        self._lock = threading.Lock()
        self._taken: list[_Place] = []

    def take(self, channel: Channel) -> bool:
        """Whether there is a place for this channel. If so, `leave` gives it back."""
        with self._lock:
            theirs = sum(place.channel.peer_id == channel.peer_id for place in self._taken)
            if theirs >= self._per_peer:
                return False
            if len(self._taken) >= self._places:
                idle = self._longest_idle()
                if idle is None:
                    return False
                self._taken.remove(idle)
                idle.channel.close()
            self._taken.append(_Place(channel, self._now()))
            return True

    def leave(self, channel: Channel) -> None:
        """It is served no longer; it may have lost its place before."""
        with self._lock:
            self._taken = [place for place in self._taken if place.channel is not channel]

    def answering(self, channel: Channel, busy: bool) -> None:
        """It has asked for something, or has got it."""
        with self._lock:
            for place in self._taken:
                if place.channel is channel:
                    place.idle_since = None if busy else self._now()

    def _longest_idle(self) -> _Place | None:
        before = self._now() - self._idle_s
        idle = [p for p in self._taken if p.idle_since is not None and p.idle_since <= before]
        return min(idle, key=lambda place: place.idle_since or 0.0, default=None)
