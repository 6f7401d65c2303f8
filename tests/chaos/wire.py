"""A stretch of wire in front of one peer's port, which can be cut or go dead."""

import contextlib
import socket
import threading
import time
from enum import StrEnum

_CHUNK_BYTES = 64 * 1024
_LOOK_S = 0.05


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
        self._ends = set[socket.socket]()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def fall_into(self, trouble: Trouble) -> None:
        self.trouble = trouble
        for end in [*self._ends] if trouble is Trouble.CUT else []:
            _hang_up(end)

    def close(self) -> None:
        self.fall_into(Trouble.CUT)
        _hang_up(self._listener)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener's end
            while True:
                near, _ = self._listener.accept()
                self._connect(near)

    def _connect(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection(("127.0.0.1", self.port))
        except OSError:
            near.close()
            return
        for ends in ((near, far), (far, near)):
            self._ends.add(ends[0])
            self._threads.append(threading.Thread(target=self._carry, args=ends, daemon=True))
            self._threads[-1].start()

    def _carry(self, end: socket.socket, other: socket.socket) -> None:
        with end, contextlib.suppress(OSError):
            while self.trouble is not Trouble.CUT and (chunk := end.recv(_CHUNK_BYTES)):
                while self.trouble is Trouble.DEAD:
                    time.sleep(_LOOK_S)  # a dead line holds its bytes until it is mended or cut
                other.sendall(chunk)
                self.chunks += 1
        self._ends.discard(end)
        _hang_up(other)


def _hang_up(end: socket.socket) -> None:
    """End a connection; a thread that waits at it goes on."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
