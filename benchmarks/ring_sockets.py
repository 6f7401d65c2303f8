"""The bytes of a ring over bare sockets, and nothing else: no sums, no checks, no order of chunks.

What a link and the kernel give when every member sends and receives at once. On slow links that is
less than a stream in one direction alone: each direction also carries the other's acknowledgements,
66 bytes for two packets of 1,514.
"""

import contextlib
import socket
import threading

from ring_links import Seat
from torch import Tensor

from atom.swarm.stream.tls import tune

_PIECE_BYTES = 256 * 1024


class BareSockets:
    """One member's: a connection to its right neighbour, one from its left."""

    def __init__(self, seat: Seat, stack: contextlib.ExitStack) -> None:
        self._listener = stack.enter_context(socket.create_server((seat.host, 0)))
        self._stack = stack
        self.address: tuple[str, int] = self._listener.getsockname()

    def connect(self, right: tuple[str, int], members: int) -> None:
        """When everybody listens."""
        self._share = 2 * (members - 1) / members
        self._right = self._stack.enter_context(socket.create_connection(right))
        self._left = self._stack.enter_context(self._listener.accept()[0])
        for connected in (self._right, self._left):
            tune(connected)

    def reduce(self, source: Tensor, run: int) -> tuple[Tensor, float]:
        """Sends what a member of a ring would send, receives as much; returns `source`."""
        size_bytes = round(self._share * source.numel() * 4)
        sending = threading.Thread(target=self._send, args=(size_bytes,))
        sending.start()
        room = memoryview(bytearray(_PIECE_BYTES))
        while size_bytes:
            received = self._left.recv_into(room[: min(size_bytes, _PIECE_BYTES)])
            assert received, "hung up"
            size_bytes -= received
        sending.join()
        return source, 0.0

    def _send(self, size_bytes: int) -> None:
        piece = memoryview(bytearray(_PIECE_BYTES))
        for start in range(0, size_bytes, _PIECE_BYTES):
            self._right.sendall(piece[: size_bytes - start])
