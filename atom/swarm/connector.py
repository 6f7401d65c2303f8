"""TCP connections to known addresses, in bounded time, given up early when the transport closes."""

import errno
import os
import select
import socket
import threading
import time

from atom.swarm.contacts import parse_address
from atom.swarm.frames import Interrupted
from atom.swarm.resolver import Resolver
from atom.swarm.socket_stream import SocketStream
from atom.swarm.tls import tune


class Connector:
    """Thread-safe."""

    def __init__(self, closing: threading.Event) -> None:
        self._closing = closing
        self._resolver = Resolver()

    def connect(self, peer_id: str, address: str, seconds: float) -> SocketStream:
        """A tuned TCP connection to "host:port", an address that this peer gave. Raises:
        OSError."""
        connected = self._connect(peer_id, parse_address(address), seconds)
        tune(connected)
        return SocketStream(connected)

    def _connect(self, peer_id: str, address: tuple[str, int], seconds: float) -> socket.socket:
        deadline = time.monotonic() + seconds
        family, kind, protocol, _, target = self._resolver.resolve(*address, seconds, peer_id)
        connecting = socket.socket(family, kind, protocol)
        try:
            connecting.setblocking(False)
            code = connecting.connect_ex(target)
            while code == errno.EINPROGRESS:
                code = self._poll(connecting, deadline)
            if code:
                raise OSError(code, os.strerror(code))
        except BaseException:
            connecting.close()
            raise
        return connecting

    def _poll(self, connecting: socket.socket, deadline: float) -> int:
        if self._closing.is_set():
            raise Interrupted("closing")
        if time.monotonic() > deadline:
            return errno.ETIMEDOUT
        poll = select.poll()
        poll.register(connecting, select.POLLOUT)
        if not poll.poll(50):
            return errno.EINPROGRESS
        return connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
