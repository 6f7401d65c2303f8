"""A connected socket as a stream: never blocking in the kernel, patient in one place.

Python's own timeouts poll before every call. Here the call comes first, and only a socket that has
nothing to give, or no room, is polled: at full speed that saves half of the system calls. On slow
links it is woken when there is a batch to be received, not for every packet: a tenth of the work.
"""

import contextlib
import select
import socket
import threading
import time

from atom.swarm.stream.frames import HungUp, Patience

_BATCH_BYTES = 64 * 1024
_BATCH_S = 0.25
"""After that, any byte is progress: a link may be slower than a batch in this time."""


class SocketStream:
    """Bytes over a connected socket, which belongs to the stream from now on."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._readable = _poll(connected, select.POLLIN)
        self._writable = _poll(connected, select.POLLOUT)
        self._lock = threading.Lock()
        self._users = 0
        self._closed = False
        self._pushed_back = memoryview(b"")
        self._batch_bytes = 1

    def send_all(self, view: memoryview, patience: Patience) -> None:
        """Raises: TimeoutError, Interrupted, ConnectionError."""
        done, last_byte = 0, time.monotonic()
        self._enter()
        try:
            while done < len(view):
                try:
                    done += self._socket.send(view[done:])
                    last_byte = time.monotonic()
                except BlockingIOError:
                    self._writable.poll(1000 * patience.wait_s(last_byte))
                except OSError as error:
                    raise ConnectionError(str(error)) from error
        finally:
            self._leave()

    def recv_into(self, view: memoryview, patience: Patience) -> None:
        """Fills `view`. Raises: as `recv_some`."""
        done = 0
        while done < len(view):
            done += self.recv_some(view[done:], patience, len(view) - done)

    def recv_some(self, view: memoryview, patience: Patience, wanted: int = 1) -> int:
        """At least one byte, at most all of `view`: how many. If there is nothing yet, it may wait
        for a batch of up to `wanted` bytes.

        Raises: TimeoutError, Interrupted, ConnectionError at the end of the stream.
        """
        if self._pushed_back:
            count = min(len(self._pushed_back), len(view))
            view[:count] = self._pushed_back[:count]
            self._pushed_back = self._pushed_back[count:]
            return count
        began = time.monotonic()
        self._enter()
        try:
            while True:
                try:
                    count = self._socket.recv_into(view)
                except BlockingIOError:
                    self._wait_for_batch(wanted, patience.wait_s(began))
                    continue
                except ConnectionResetError as reset:
                    raise HungUp from reset
                except OSError as error:
                    raise ConnectionError(str(error)) from error
                if count == 0:
                    raise HungUp
                return count
        finally:
            self._leave()

    def push_back(self, data: bytes) -> None:
        """These bytes are received before all others: they were read too early."""
        assert not self._pushed_back
        self._pushed_back = memoryview(data)

    def idle(self) -> bool:
        if self._pushed_back:
            return False
        self._enter()
        try:
            self._set_batch(1)
            return not self._readable.poll(0)
        finally:
            self._leave()

    def close(self) -> None:
        """Shuts down at once; the descriptor is freed by the last user, so it cannot be reused
        under a call that waits."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            if self._users == 0:
                self._socket.close()

    def _wait_for_batch(self, wanted: int, seconds: float) -> None:
        """For that many bytes, or the end; after a while for whatever there is."""
        self._set_batch(max(min(wanted, _BATCH_BYTES), 1))
        self._readable.poll(1000 * min(seconds, _BATCH_S))

    def _set_batch(self, size_bytes: int) -> None:
        if size_bytes != self._batch_bytes:
            self._batch_bytes = size_bytes
            with contextlib.suppress(OSError):  # without it every packet wakes us
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)

    def _enter(self) -> None:
        with self._lock:
            if self._closed:
                raise ConnectionError("closed here")
            self._users += 1

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._closed and self._users == 0:
                self._socket.close()


def _poll(connected: socket.socket, event: int) -> "select.poll":
    poll = select.poll()
    poll.register(connected, event)
    return poll
