"""Who is served at the same time, when more ask than a donor has places. Thread-safe.

Every peer has a few places at most. When all are taken, the one that has asked for nothing for
the longest gives its own to whoever comes: its channel is closed, and it may come again. For whom
the run knows a stranger gives way even while it is answered: identities that ask all the time are
free, and a voter without the result cannot decide.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from atom.swarm.stream.frames import Channel


@dataclass
class Place:
    """Who is served, and since when it has asked for nothing."""

    channel: Channel
    idle_since: float | None
    """None while it is being answered."""

    @property
    def peer_id(self) -> str:
        return self.channel.peer_id


def gives_way(
    taken: Sequence[Place], comer: str, known: Container[str], idle_before: float
) -> Place | None:
    """Which of the places goes to `comer`, if any: of those that are idle since `idle_before` the
    longest idle, strangers' first; then, to whom the run knows, one of the greediest stranger."""
    idle = [
        (place.peer_id in known, place.idle_since, number)
        for number, place in enumerate(taken)
        if place.idle_since is not None and place.idle_since <= idle_before
    ]
    if idle:
        return taken[min(idle)[-1]]
    strangers = [place for place in taken if place.peer_id not in known]
    if comer not in known or not strangers:
        return None
    greediest, _ = Counter(place.peer_id for place in strangers).most_common(1)[0]
    return next(place for place in strangers if place.peer_id == greediest)


class UploadPlaces:
    """The places of one donor."""

    def __init__(
        self,
        places: int = 16,
        per_peer: int = 4,
        idle_s: float = 1.0,
        now: Callable[[], float] = time.monotonic,
        known: Container[str] = (),
    ) -> None:
        """`idle_s`: so long anybody may take until it asks for something. `known`: whom the run
        knows, asked each time."""
        self._places, self._per_peer = places, per_peer
        self._idle_s, self._now, self._known = idle_s, now, known
        self._lock = threading.Lock()
        self._taken: list[Place] = []

    def take(self, channel: Channel) -> bool:
        """Whether there is a place for this channel. If so, `leave` gives it back."""
        with self._lock:
            theirs = sum(place.peer_id == channel.peer_id for place in self._taken)
            if theirs >= self._per_peer:
                return False
            if len(self._taken) >= self._places:
                before = self._now() - self._idle_s
                leaving = gives_way(self._taken, channel.peer_id, self._known, before)
                if leaving is None:
                    return False
                self._taken.remove(leaving)
                leaving.channel.close()
            self._taken.append(Place(channel, self._now()))
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
