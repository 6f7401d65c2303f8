"""Two connected streams in memory: bounded pipes that behave like sockets with small buffers."""

import threading
import time
from collections import deque

from atom.swarm.stream.frames import HungUp, Patience


class _Pipe:
    """One direction in memory: at most `capacity` bytes wait, then the writer does."""

    def __init__(self, capacity: int) -> None:
        self.changed = threading.Condition()
        self.waiting: deque[memoryview] = deque()
        self.room = capacity
        self.closed = False

    def write(self, view: memoryview, patience: Patience) -> None:
        last_byte = time.monotonic()
        while len(view):
            with self.changed:
                if self.closed:
                    raise ConnectionError("closed")
                count = min(self.room, len(view))
                if count:
                    self.waiting.append(memoryview(bytes(view[:count])))
                    self.room -= count
                    view, last_byte = view[count:], time.monotonic()
                    self.changed.notify_all()
                else:
                    self.changed.wait(patience.wait_s(last_byte))

    def read_into(self, view: memoryview, patience: Patience) -> None:
        last_byte = time.monotonic()
        while len(view):
            with self.changed:
                if self.waiting:
                    count = min(len(self.waiting[0]), len(view))
                    view[:count] = self.waiting[0][:count]
                    self.waiting[0] = self.waiting[0][count:]
                    if not self.waiting[0]:
                        self.waiting.popleft()
                    self.room += count
                    view, last_byte = view[count:], time.monotonic()
                    self.changed.notify_all()
                elif self.closed:
                    raise HungUp
                else:
                    self.changed.wait(patience.wait_s(last_byte))

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()


class MemoryStream:
    """One end of an in-memory connection; behaves like a socket with small buffers."""

    def __init__(self, outgoing: _Pipe, incoming: _Pipe) -> None:
        self._outgoing = outgoing
        self._incoming = incoming
        self._closed = False

    @classmethod
    def pair(cls, capacity_bytes: int = 1 << 20) -> tuple["MemoryStream", "MemoryStream"]:
        """Two connected ends."""
        one, other = _Pipe(capacity_bytes), _Pipe(capacity_bytes)
        return cls(one, other), cls(other, one)

    def send_all(self, view: memoryview, patience: Patience) -> None:
        self._check_open()
        self._outgoing.write(view.cast("B"), patience)

    def recv_into(self, view: memoryview, patience: Patience) -> None:
        self._check_open()
        self._incoming.read_into(view.cast("B"), patience)

    def idle(self) -> bool:
        with self._incoming.changed:
            return not self._incoming.waiting and not self._incoming.closed

    def close(self) -> None:
        self._closed = True
        self._outgoing.close()
        self._incoming.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionError("closed here")
