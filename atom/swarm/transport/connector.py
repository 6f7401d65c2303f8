"""TCP connections to known addresses, in bounded time, given up early when the transport closes or
nobody wants them any more."""

import errno
import os
import select
import socket
import threading
import time
from collections.abc import Sequence

from atom.swarm.stream.frames import Interrupted
from atom.swarm.stream.socket_stream import SocketStream
from atom.swarm.stream.tls import tune
from atom.swarm.transport.contacts import parse_address
from atom.swarm.transport.resolver import Resolver


class Connector:
    """Thread-safe."""

    def __init__(self, closing: threading.Event) -> None:
        self._closing = closing
        self._resolver = Resolver()

    def connect(
        self, peer_id: str, address: str, seconds: float, stop: threading.Event | None = None
    ) -> SocketStream:
        """A tuned TCP connection to "host:port", an address that this peer gave. Raises:
        OSError; Interrupted once `stop` is set."""
        given_up = [self._closing] if stop is None else [self._closing, stop]
        connected = self._connect(peer_id, parse_address(address), seconds, given_up)
        tune(connected)
        return SocketStream(connected)

    def _connect(
        self,
        peer_id: str,
        address: tuple[str, int],
        seconds: float,
        given_up: Sequence[threading.Event],
    ) -> socket.socket:
        deadline = time.monotonic() + seconds
        family, kind, protocol, _, target = self._resolver.resolve(*address, seconds, peer_id)
        connecting = socket.socket(family, kind, protocol)
        try:
            connecting.setblocking(False)
            code = connecting.connect_ex(target)
            while code == errno.EINPROGRESS:
                if any(event.is_set() for event in given_up):
                    raise Interrupted("given up")
                code = _poll(connecting, deadline)
            if code:
                raise OSError(code, os.strerror(code))
        except BaseException:
            connecting.close()
            raise
        return connecting


def _poll(connecting: socket.socket, deadline: float) -> int:
    if time.monotonic() > deadline:
        return errno.ETIMEDOUT
    poll = select.poll()
    poll.register(connecting, select.POLLOUT)
    if not poll.poll(50):
        return errno.EINPROGRESS
    return connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
