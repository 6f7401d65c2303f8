"""Ring channels that came before this peer asked for them: few of each peer, and not for long."""

import threading
import time
from collections import Counter

from atom.swarm.stream.frames import Channel

Key = tuple[str, bytes]
"""Peer id and tag."""


class RingPool:
    """Thread-safe. A peer has a share of the places; if all are taken, whoever has most gives one
    up. A channel that somebody waits for takes no place."""

    def __init__(self, places: int, per_peer: int) -> None:
        self._places = places
        self._per_peer = per_peer
        self._changed = threading.Condition()
        self._waiting: dict[Key, Channel] = {}
        self._awaited: Counter[Key] = Counter()
        self._closed = False

    def offer(self, channel: Channel, seconds: float) -> bool:
        """Waits until somebody claims `channel`; False if nobody did in time or room is out.

        A newer channel of the same peer and tag replaces the older one.
        """
        key = (channel.peer_id, channel.tag)
        deadline = time.monotonic() + seconds
        with self._changed:
            if self._closed or not self._find_room(key):
                return False
            self._waiting[key] = channel
            self._changed.notify_all()
            while self._waiting.get(key) is channel and not self._closed:
                left = deadline - time.monotonic()
                if left <= 0 or channel.closed.is_set():
                    break
                self._changed.wait(left)
            return self._settled(key, channel)

    def claim(self, peer_id: str, tag: bytes, seconds: float) -> Channel:
        """The channel of that peer and tag, waited for. Raises: TimeoutError, ConnectionError."""
        key = (peer_id, tag)
        with self._changed:
            self._awaited[key] += 1
            self._changed.wait_for(lambda: key in self._waiting or self._closed, seconds)
            self._awaited -= Counter([key])
            if self._closed:
                raise ConnectionError("closed here")
            if key not in self._waiting:
                raise TimeoutError(f"no ring connection from {peer_id}")
            channel = self._waiting.pop(key)
            channel.claimed = True
            self._changed.notify_all()
            return channel

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _find_room(self, key: Key) -> bool:
        if key in self._waiting or self._awaited[key]:
            return True
        held = Counter(peer_id for peer_id, _ in self._waiting)
        if held[key[0]] >= self._per_peer:
            return False
        if len(self._waiting) < self._places:
            return True
        greediest, most = held.most_common(1)[0]
        if most <= held[key[0]] + 1:
            return False
        del self._waiting[next(each for each in self._waiting if each[0] == greediest)]
        self._changed.notify_all()
        return True

    def _settled(self, key: Key, channel: Channel) -> bool:
        """Takes the channel back out unless it was claimed or replaced."""
        if self._waiting.get(key) is channel:
            del self._waiting[key]
        return channel.claimed
