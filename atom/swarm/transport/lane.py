"""Outgoing messages to one peer: a bounded queue and a thread that lives while there is traffic."""

import threading
from collections import deque
from collections.abc import Callable

from atom.base.errors import PeerRefused
from atom.swarm.stream.frames import Channel, Kind, Patience
from atom.swarm.transport.contacts import Unreachable
from atom.swarm.transport.endpoint import Endpoint

OnUnreachable = Callable[[str, bool], None]
"""peer id, whether its own host answered that nobody listens (see `Unreachable.refused`)."""


class Lanes:
    """All destinations. `send` never blocks; what cannot be delivered is dropped and reported."""

    def __init__(self, endpoint: Endpoint, dial: Callable[[str], Channel]) -> None:
        self.on_unreachable: OnUnreachable | None = None
        self._endpoint = endpoint
        self._dial = dial
        self._changed = threading.Condition()
        self._queues: dict[str, deque[bytes]] = {}
        self._doubted: set[str] = set()
        """Whose connection is given up before the next message, unless it was dialled."""
        self._unbegun: dict[str, None] = {}
        """Whose queue has no thread yet, in the order they came."""
        self._introductions = 0

    def send(self, peer_id: str, raw: bytes) -> bool:
        """Queues a message; False if this destination's queue is full, it is a stranger and there
        are too many others already, or we are closing."""
        limits, known = self._endpoint.limits, self._endpoint.known
        with self._changed:
            if self._endpoint.closing.is_set():
                return False
            queue = self._queues.get(peer_id)
            if queue is None:
                if len(self._queues) >= limits.destinations and peer_id not in known:
                    return False
                queue = self._queues[peer_id] = deque()
                self._unbegun[peer_id] = None
            if peer_id in self._unbegun and not self._begin(peer_id):
                return False
            full = len(queue) >= limits.queued_messages
            full = full or sum(map(len, queue)) + len(raw) > limits.queued_bytes
            if not full:
                queue.append(raw)
                self._changed.notify_all()
        if full:  # told without the lock: every message waits for it, and this one for the disk
            self._endpoint.events.emit("message-dropped", peer_id=peer_id, reason="queue full")
        return not full

    def doubt(self, peer_id: str) -> None:
        """It did not answer. What goes through a third may end there and nobody notices, if that
        one is frozen: its kernel still takes every byte."""
        with self._changed:
            if peer_id in self._queues:
                self._doubted.add(peer_id)

    def wake(self) -> None:
        """After `closing` was set: lets the threads end."""
        with self._changed:
            self._changed.notify_all()

    def _begin(self, peer_id: str) -> bool:
        """Gives a queue its thread, unless it has to wait; False: there is none to be had."""
        introduces = peer_id not in self._endpoint.known
        if introduces and self._introductions >= self._endpoint.limits.introductions:
            return True
        del self._unbegun[peer_id]
        try:
            self._endpoint.crew.start("atom-lane", lambda: self._run(peer_id, introduces))
        except OSError:  # the next message tries again
            del self._queues[peer_id]
            return False
        self._introductions += introduces
        return True

    def _introduced(self) -> None:
        """A stranger was reached, or was not: the next may be."""
        with self._changed:
            self._introductions -= 1
            most = 0 if self._endpoint.closing.is_set() else self._endpoint.limits.introductions
            while self._unbegun and self._introductions < most:
                self._begin(next(iter(self._unbegun)))

    def _run(self, peer_id: str, introduces: bool) -> None:
        channel: Channel | None = None
        with self._changed:
            ours = self._queues[peer_id]
        try:
            while (raw := self._next(peer_id)) is not None:
                channel = self._deliver(peer_id, raw, channel)
                if introduces:
                    introduces = False
                    self._introduced()
        finally:
            if introduces:
                self._introduced()
            with self._changed:
                if self._queues.get(peer_id) is ours:  # not the queue of the lane after us
                    del self._queues[peer_id]
            if channel is not None:
                channel.close()

    def _next(self, peer_id: str) -> bytes | None:
        """The next message; None (and the lane is gone) after a long silence or when closing."""
        with self._changed:
            queue = self._queues[peer_id]
            closing = self._endpoint.closing
            self._changed.wait_for(
                lambda: bool(queue) or closing.is_set(), self._endpoint.limits.lane_idle_s
            )
            if not queue or closing.is_set():
                del self._queues[peer_id]  # under the lock: a later send starts a new lane
                return None
            return queue.popleft()

    def _deliver(self, peer_id: str, raw: bytes, channel: Channel | None) -> Channel | None:
        """Sends over `channel` if it is alive, else over a new one, which is returned."""
        with self._changed:
            doubted = peer_id in self._doubted
            self._doubted.discard(peer_id)
        if channel is not None:
            good = channel.direct or not doubted
            if good and self._try(channel, raw):
                return channel
            channel.close()
        try:
            channel = self._dial(peer_id)
        except (OSError, PeerRefused) as error:
            self._give_up(peer_id, error)
            return None
        if self._try(channel, raw):
            return channel
        channel.close()
        self._give_up(peer_id, ConnectionError("lost while sending"))
        return None

    def _try(self, channel: Channel, raw: bytes) -> bool:
        try:
            if not channel.stream.idle():
                return False  # the server never speaks here: this is its end of stream
            patience = Patience.within(self._endpoint.limits.frame_s)
            channel.send_frame(Kind.MESSAGE, raw, patience=patience)
        except OSError:
            return False
        return True

    def _give_up(self, peer_id: str, error: Exception) -> None:
        """Drops what is queued as well: it would only meet the same fate, later."""
        with self._changed:
            if peer_id in self._queues:
                self._queues[peer_id].clear()
        if self._endpoint.closing.is_set():
            return
        refused = isinstance(error, Unreachable) and error.refused
        self._endpoint.events.emit(
            "peer-unreachable", peer_id=peer_id, refused=refused, detail=str(error)[:200]
        )
        if self.on_unreachable is not None:
            self.on_unreachable(peer_id, refused)
