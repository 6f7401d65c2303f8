"""Two streams under a channel: a TLS (or plain) socket, and a pair of bounded memory pipes."""

import contextlib
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from atom.swarm.frames import Patience


class SocketStream:
    """A connected blocking socket. Timeouts are per TLS record, so `silence_s` means no record."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._timeout_s = -1.0
        self._lock = threading.Lock()
        self._users = 0
        self._closed = False

    def send_all(self, view: memoryview, patience: Patience) -> None:
        self._move(self._socket.send, view, patience)

    def recv_into(self, view: memoryview, patience: Patience) -> None:
        self._move(self._socket.recv_into, view, patience)

    def handshake(self, patience: Patience) -> None:
        """TLS handshake. Raises: TimeoutError, Interrupted, ConnectionError (also for garbage)."""
        assert isinstance(self._socket, ssl.SSLSocket)
        start = time.monotonic()
        with self._in_use():
            while True:
                self._set_timeout(patience.wait_s(start))
                try:
                    return self._socket.do_handshake()
                except TimeoutError:
                    continue
                except OSError as error:
                    raise ConnectionError(str(error)) from error

    def certificate(self) -> bytes | None:
        """The other end's certificate (DER), after the handshake."""
        assert isinstance(self._socket, ssl.SSLSocket)
        return self._socket.getpeercert(binary_form=True)

    def idle(self) -> bool:
        with self._in_use():
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            return not poll.poll(0)

    def close(self) -> None:
        """Shuts down at once; the descriptor is freed by the last user, so it cannot be reused
        under a blocked call."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            with contextlib.suppress(OSError):
                # not SSLSocket.shutdown: that would drop TLS under a reader's feet
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
            if self._users == 0:
                self._socket.close()

    def _move(self, call: Callable[[memoryview], int], view: memoryview, wait: Patience) -> None:
        done, last_byte = 0, time.monotonic()
        with self._in_use():
            while done < len(view):
                self._set_timeout(wait.wait_s(last_byte))
                try:
                    count = call(view[done:])
                except TimeoutError:
                    continue  # patience decides; OpenSSL repeats the same bytes
                except OSError as error:
                    raise ConnectionError(str(error)) from error
                if count == 0:
                    raise ConnectionError("closed by the other end")
                done += count
                last_byte = time.monotonic()

    def _set_timeout(self, seconds: float) -> None:
        if seconds != self._timeout_s:
            self._socket.settimeout(seconds)
            self._timeout_s = seconds

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        with self._lock:
            if self._closed:
                raise ConnectionError("closed here")
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._closed and self._users == 0:
                    self._socket.close()


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
                    raise ConnectionError("closed by the other end")
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
