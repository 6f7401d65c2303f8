"""A stretch of wire in front of one peer's port, which can be cut or go dead."""

import selectors
import socket
import threading
from enum import StrEnum

_CHUNK_BYTES = 64 * 1024
_LOOK_S = 0.05
_PATIENCE_S = 5.0


class Trouble(StrEnum):
    NONE = "sound"
    CUT = "cut"
    """Every connection is closed, and no new one comes about."""
    DEAD = "dead"
    """Half-open: connections stay, new ones are accepted, and nothing passes any more."""


class Wire:
    """Carries what comes to `host`:`port` to 127.0.0.1:`port`. Ends with `close`."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.trouble = Trouble.NONE
        self.chunks = 0
        """Passed so far."""
        self._listener = socket.create_server((host, port))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._other_end: dict[socket.socket, socket.socket] = {}
        """Other end of each connection, in both directions."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"wire {host}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self._drop(*self._other_end)
        self._listener.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            if self.trouble is Trouble.CUT:
                self._drop(*self._other_end)
            if self.trouble is Trouble.DEAD:
                self._closing.wait(_LOOK_S)  # the kernel still accepts
                continue
            for key, _ in self._selector.select(_LOOK_S):
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(end := key.fileobj, socket.socket) and end in self._other_end:
                    self._carry(end)

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        try:
            if self.trouble is Trouble.CUT:
                raise OSError("cut")
            far = socket.create_connection(("127.0.0.1", self.port), _PATIENCE_S)
        except OSError:
            near.close()
            return
        near.settimeout(_PATIENCE_S)
        for end, other in ((near, far), (far, near)):
            self._other_end[end] = other
            self._selector.register(end, selectors.EVENT_READ)

    def _carry(self, end: socket.socket) -> None:
        try:
            chunk = end.recv(_CHUNK_BYTES)
            self._other_end[end].sendall(chunk)
            self.chunks += 1
        except OSError:
            chunk = b""
        if not chunk:
            self._drop(end, self._other_end[end])

    def _drop(self, *ends: socket.socket) -> None:
        for end in ends:
            del self._other_end[end]
            self._selector.unregister(end)
            end.close()
