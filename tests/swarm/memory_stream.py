"""Two connected streams in memory, which behave like sockets with small buffers."""

import threading
import time

from atom.swarm.stream.frames import HungUp, Patience

CAPACITY_BYTES = 1 << 20


class MemoryStream:
    """One end, with the bytes that have arrived at it."""

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._arrived = bytearray()
        self._closed = False
        self._far = self

    @classmethod
    def pair(cls) -> tuple["MemoryStream", "MemoryStream"]:
        """Two connected ends."""
        changed = threading.Condition()
        one, other = cls(changed), cls(changed)
        one._far, other._far = other, one
        return one, other

    def send_all(self, view: memoryview, patience: Patience) -> None:
        view, far, last_byte = view.cast("B"), self._far, time.monotonic()
        with self._changed:
            while len(view):
                if self._closed or far._closed:
                    raise ConnectionError("closed")
                if room := CAPACITY_BYTES - len(far._arrived):
                    far._arrived += view[:room]
                    view, last_byte = view[room:], time.monotonic()
                    self._changed.notify_all()
                else:
                    self._changed.wait(patience.wait_s(last_byte))

    def recv_into(self, view: memoryview, patience: Patience) -> None:
        view, last_byte = view.cast("B"), time.monotonic()
        with self._changed:
            while len(view):
                if self._closed:
                    raise ConnectionError("closed here")
                if count := min(len(self._arrived), len(view)):
                    view[:count] = self._arrived[:count]
                    del self._arrived[:count]
                    view, last_byte = view[count:], time.monotonic()
                    self._changed.notify_all()
                elif self._far._closed:
                    raise HungUp
                else:
                    self._changed.wait(patience.wait_s(last_byte))

    def idle(self) -> bool:
        return not self._arrived and not self._far._closed

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
