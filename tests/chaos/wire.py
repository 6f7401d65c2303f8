"""A stretch of wire in front of one peer's port, which can be cut, go dead, or change bytes."""

import contextlib
import selectors
import socket
import threading
from dataclasses import dataclass
from enum import StrEnum

_CHUNK_BYTES = 64 * 1024
_LOOK_S = 0.05
_CHANGED_EVERY = 3
"""Of the chunks that pass a changing wire, one in so many has a byte changed."""


class Trouble(StrEnum):
    NONE = "sound"
    CUT = "cut"
    """Every connection is closed, and no new one comes about."""
    DEAD = "dead"
    """Half-open: connections stay, new ones are accepted, and nothing passes any more."""
    CHANGING = "changing"
    """Some bytes arrive as others."""


@dataclass
class _Pair:
    near: socket.socket
    far: socket.socket


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
        self._pairs: list[_Pair] = []
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"wire {host}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        for pair in list(self._pairs):
            self._drop(pair)
        self._listener.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            if self.trouble is Trouble.CUT:
                for pair in list(self._pairs):
                    self._drop(pair)
            if self.trouble is Trouble.DEAD:
                self._closing.wait(_LOOK_S)  # the kernel still accepts
                continue
            for key, _ in self._selector.select(_LOOK_S):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.data in self._pairs:
                    self._carry(key.fileobj, key.data)  # type: ignore[arg-type]

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        if self.trouble is Trouble.CUT:
            near.close()
            return
        try:
            far = socket.create_connection(("127.0.0.1", self.port), timeout=5.0)
        except OSError:
            near.close()
            return
        pair = _Pair(near, far)
        self._pairs.append(pair)
        for end in (near, far):
            end.settimeout(5.0)
            self._selector.register(end, selectors.EVENT_READ, pair)

    def _carry(self, end: socket.socket, pair: _Pair) -> None:
        other = pair.far if end is pair.near else pair.near
        try:
            chunk = end.recv(_CHUNK_BYTES)
            other.sendall(self._changed(chunk))
        except OSError:
            chunk = b""
        if not chunk:
            self._drop(pair)

    def _changed(self, chunk: bytes) -> bytes:
        self.chunks += 1
        if self.trouble is not Trouble.CHANGING or self.chunks % _CHANGED_EVERY or not chunk:
            return chunk
        at = (self.chunks * 7919) % len(chunk)
        return chunk[:at] + bytes([chunk[at] ^ 0x55]) + chunk[at + 1 :]

    def _drop(self, pair: _Pair) -> None:
        self._pairs.remove(pair)
        for end in (pair.near, pair.far):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(end)
            end.close()
