"""Outgoing messages to one peer: a bounded queue and a thread that lives while there is traffic."""

import threading
from collections import deque
from collections.abc import Callable

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.stream.frames import Channel, Kind, Patience
from atom.swarm.transport.limits import Endpoint


class Lanes:
    """All destinations. `send` never blocks; what cannot be delivered is dropped and reported.
    Thread-safe."""

    def __init__(self, endpoint: Endpoint, dial: Callable[[str], Channel]) -> None:
        self._endpoint = endpoint
        self._dial = dial
        self._changed = threading.Condition()
        self._queues: dict[str, deque[bytes]] = {}
        """Of the destinations that have a thread."""

    def send(self, peer_id: str, raw: bytes) -> bool:
        """Queues a message; False if this destination's queue is full, there are too many
        destinations already, or we are closing."""
        limits = self._endpoint.limits
        with self._changed:
            if self._endpoint.closing.is_set() or not self._has_lane(peer_id):
                return False
            queue = self._queues[peer_id]
            full = len(queue) >= limits.queued_messages
            full = full or sum(map(len, queue)) + len(raw) > limits.queued_bytes
            if not full:
                queue.append(raw)
                self._changed.notify_all()
        if full:  # told without the lock: every message waits for it, and this one for the disk
            refused = PeerRefused(Reason.BUSY, "queue full")
            self._endpoint.tell("message-dropped", refused, peer_id=peer_id)
        return not full

    def wake(self) -> None:
        """After `closing` was set: lets the threads end."""
        with self._changed:
            self._changed.notify_all()

    def _has_lane(self, peer_id: str) -> bool:
        """Whether the destination has a queue and a thread; begins them if it had none."""
        if peer_id in self._queues:
            return True
        end = self._endpoint
        if not end.known.has_room(peer_id, self._queues, end.limits.destinations):
            return False
        queue = self._queues[peer_id] = deque[bytes]()
        try:
            end.threads.start("atom-lane", lambda: self._run(peer_id, queue))
        except OSError:  # the next message tries again
            del self._queues[peer_id]
            return False
        return True

    def _run(self, peer_id: str, queue: deque[bytes]) -> None:
        channel: Channel | None = None
        lost: OSError | PeerRefused | None = None
        try:
            while (raw := self._next(peer_id, queue)) is not None:
                channel = self._deliver(peer_id, raw, channel)
        except (OSError, PeerRefused) as error:
            lost = error
        finally:
            self._drop(peer_id, queue)
            if channel is not None:
                channel.close()
        if lost is not None and not self._endpoint.closing.is_set():
            self._tell_unreachable(peer_id, lost)

    def _next(self, peer_id: str, queue: deque[bytes]) -> bytes | None:
        """The next message; None (and the lane is gone) after a long silence or when closing."""
        closing = self._endpoint.closing
        with self._changed:
            self._changed.wait_for(
                lambda: bool(queue) or closing.is_set(), self._endpoint.limits.lane_idle_s
            )
            if not queue or closing.is_set():
                self._drop(peer_id, queue)  # under the lock: a later send starts a new lane
                return None
            return queue.popleft()

    def _drop(self, peer_id: str, queue: deque[bytes]) -> None:
        """This lane is over. What is queued is dropped: it would only meet the same fate."""
        with self._changed:
            if self._queues.get(peer_id) is queue:
                del self._queues[peer_id]

    def _deliver(self, peer_id: str, raw: bytes, channel: Channel | None) -> Channel:
        """Sends over `channel` if it is alive, else over a new one; returns the one that took the
        message. Raises: OSError, PeerRefused if the peer cannot be reached."""
        if channel is not None:
            if self._try(channel, raw):
                return channel
            channel.close()
        channel = self._dial(peer_id)
        if not self._try(channel, raw):
            channel.close()
            raise ConnectionError("lost while sending")
        return channel

    def _try(self, channel: Channel, raw: bytes) -> bool:
        try:
            if not channel.stream.idle():
                return False  # the server never speaks here: this is its end of stream
            patience = Patience.within(self._endpoint.limits.frame_s)
            channel.send_frame(Kind.MESSAGE, raw, patience=patience)
        except OSError:
            return False
        return True

    def _tell_unreachable(self, peer_id: str, error: OSError | PeerRefused) -> None:
        told = PeerRefused(Reason.UNREACHABLE, str(error))
        self._endpoint.tell("peer-unreachable", told, peer_id=peer_id)
        self._endpoint.handlers.on_unreachable(peer_id)
