"""Outgoing connections: at a peer's addresses, by calling it, or through a relay; then TLS, the
check of its key, the handshake. However the connection came about, the two ends prove themselves to
each other.
"""

import contextlib
import errno
import math
import os
import select
import socket
import threading
import time
from dataclasses import replace
from typing import Any

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.stream import handshake
from atom.swarm.stream.frames import Channel, Interrupted, Patience, Purpose
from atom.swarm.stream.socket_stream import SocketStream
from atom.swarm.stream.tls import Credentials, TlsStream, peer_of_certificate, tune
from atom.swarm.transport.contacts import ContactBook, Unreachable, Way, WayKind, parse_address
from atom.swarm.transport.limits import Endpoint
from atom.swarm.transport.link_book import LinkBook
from atom.swarm.transport.reverse_connections import ReverseConnections

MOST_LOOKUPS = 16
"""Of host names under way at a time. The system's resolver may take half a minute, and the names
come from strangers' leases."""

AddressInfo = tuple[int, int, int, str, Any]
"""As `socket.getaddrinfo` gives them."""


class Dialer:
    """Opens outgoing channels; `close` cuts those that are open. Thread-safe."""

    def __init__(
        self, endpoint: Endpoint, credentials: Credentials, reverse: ReverseConnections
    ) -> None:
        self.contacts = ContactBook()
        self.links = LinkBook()
        self._endpoint = endpoint
        self._credentials = credentials
        self._reverse = reverse
        self._resolver = Resolver()
        self._lock = threading.Lock()
        self._open: set[Channel] = set()

    def dial(
        self,
        peer_id: str,
        purpose: Purpose,
        tag: bytes = b"",
        seconds: float = math.inf,
        stop: threading.Event | None = None,
    ) -> Channel:
        """A channel to that peer and no other, within `seconds` (and the usual limits), or until
        `stop` is set.

        Raises: Unreachable; PeerRefused (the last reason) if only refusals were met.
        """
        own = self._endpoint.local.identity.peer_id
        ways = [way for way in self.contacts.ways(peer_id) if way.name not in (peer_id, own)]
        if not self._reverse.has_line(peer_id):
            ways = [way for way in ways if way.kind is not WayKind.CALLED]
        patience = Patience(seconds, time.monotonic() + seconds, stop)
        return self._first_of(ways, peer_id, purpose, tag, patience)

    def dial_directly(
        self, peer_id: str, purpose: Purpose, tag: bytes = b"", seconds: float = math.inf
    ) -> Channel:
        """As `dial`, at the peer's addresses only."""
        patience = Patience(seconds, time.monotonic() + seconds)
        return self._first_of(self._direct(peer_id), peer_id, purpose, tag, patience)

    def open(self, peer_id: str, seconds: float) -> tuple[SocketStream, str]:
        """A connection to the first of the peer's addresses that takes one, and its host; nothing
        is proven. Raises: OSError."""
        patience, failure = Patience.within(seconds), OSError("no known address")
        for _, address in self._direct(peer_id):
            try:
                return self._connect(address, patience), parse_address(address)[0]
            except OSError as error:
                failure = error
        raise failure

    def close(self) -> None:
        """Cuts all outgoing channels."""
        with self._lock:
            cut = list(self._open)
        for channel in cut:
            channel.close()

    def _direct(self, peer_id: str) -> list[Way]:
        return [way for way in self.contacts.ways(peer_id) if way.kind is WayKind.DIALLED]

    def _first_of(
        self, ways: list[Way], peer_id: str, purpose: Purpose, tag: bytes, patience: Patience
    ) -> Channel:
        """Each way but the last has at most half of what is left of the time: an address behind
        which nobody answers must not use up all of it."""
        failures: list[OSError | PeerRefused] = []
        for way in ways:
            share = patience if way == ways[-1] else _half(patience)
            try:
                channel = self._shake_hands(way, peer_id, purpose, tag, share)
            except Interrupted:
                raise
            except (OSError, PeerRefused) as failure:
                failures.append(failure)
                self.contacts.failed(peer_id, way)
            else:
                self.contacts.worked(peer_id, way)
                return channel
        refusals = [failure for failure in failures if isinstance(failure, PeerRefused)]
        if refusals:
            raise refusals[-1]
        nobody = bool(failures) and all(isinstance(f, ConnectionRefusedError) for f in failures)
        detail = "; ".join(str(failure) for failure in failures) or "no known address"
        raise Unreachable(f"{peer_id}: {detail}", nobody)

    def _shake_hands(
        self, way: Way, peer_id: str, purpose: Purpose, tag: bytes, patience: Patience
    ) -> Channel:
        below = self._open_way(way, peer_id, patience)
        stream = TlsStream(below, self._credentials.client, server_side=False)
        limited = self._endpoint.bandwidth.limit(stream, ring=purpose is Purpose.RING)
        channel = Channel(limited, self._gone)
        channel.purpose, channel.tag = purpose, tag
        channel.direct = way.kind is WayKind.DIALLED
        with self._lock:
            self._open.add(channel)
        try:
            within = _at_most(self._endpoint.limits.handshake_s, patience)
            stream.handshake(within)
            certificate = stream.certificate()
            if certificate is None or peer_of_certificate(certificate) != peer_id:
                raise PeerRefused(Reason.WRONG_IDENTITY, f"that is not {peer_id}")
            handshake.greet(channel, self._endpoint.local, peer_id, certificate, within)
        except BaseException:
            channel.close()
            raise
        if purpose is Purpose.RELAY:  # its welcome had to wait for the third: no round trip
            channel.stream = stream.hand_over()  # what goes through it is limited further in
        elif channel.round_trip_s is not None:
            self.links.met(peer_id, channel.round_trip_s)
        return channel

    def _open_way(self, way: Way, peer_id: str, patience: Patience) -> SocketStream:
        """A connection, nothing proven. Raises: OSError, PeerRefused."""
        within = _at_most(self._endpoint.limits.connect_s, patience)
        match way.kind:
            case WayKind.DIALLED:
                return self._connect(way.name, within)
            case WayKind.CALLED:
                return self._reverse.call(peer_id, within.left_s())
        tag = peer_id.encode()
        channel = self.dial_directly(way.name, Purpose.RELAY, tag, within.left_s())
        assert isinstance(channel.stream, SocketStream), "relays hand over the bare connection"
        self._gone(channel)  # the channel inside it takes its place
        return channel.stream

    def _connect(self, address: str, patience: Patience) -> SocketStream:
        """A tuned TCP connection. Raises: OSError; Interrupted when closing, too."""
        host, port = parse_address(address)
        family, kind, protocol, _, target = self._resolver.resolve(host, port, patience.left_s())
        connecting = socket.socket(family, kind, protocol)
        try:
            connecting.setblocking(False)
            code = connecting.connect_ex(target)
            while code == errno.EINPROGRESS:
                if self._endpoint.closing.is_set():
                    raise Interrupted("closing")
                patience.wait_s(math.inf)
                code = _poll(connecting)
            if code:
                raise OSError(code, os.strerror(code))
        except BaseException:
            connecting.close()
            raise
        tune(connecting)
        return SocketStream(connecting)

    def _gone(self, channel: Channel) -> None:
        with self._lock:
            self._open.discard(channel)


class Resolver:
    """From host names to addresses, in bounded time and threads. Thread-safe.

    Nobody waits for its threads in the end: they only ever wait themselves.
    """

    def __init__(self) -> None:
        self._free = threading.BoundedSemaphore(MOST_LOOKUPS)

    def resolve(self, host: str, port: int, seconds: float) -> AddressInfo:
        """The first address of a host, within `seconds`. Raises: OSError (unknown, or not a name at
        all), TimeoutError."""
        deadline = time.monotonic() + seconds
        with contextlib.suppress(socket.gaierror):
            return _lookup(host, port, socket.AI_NUMERICHOST)
        if not self._free.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
            raise TimeoutError("too many host names are being looked up")
        found: list[AddressInfo | OSError] = []
        done = threading.Event()

        def look() -> None:
            try:
                found.append(_lookup(host, port))
            except OSError as problem:
                found.append(problem)
            finally:
                self._free.release()
                done.set()

        try:
            threading.Thread(target=look, name="atom-lookup", daemon=True).start()
        except RuntimeError as problem:
            self._free.release()
            raise OSError(f"no thread to look up {host}: {problem}") from problem
        if not done.wait(max(deadline - time.monotonic(), 0.0)):
            raise TimeoutError(f"looking up {host} takes too long")
        if isinstance(found[0], OSError):
            raise OSError(str(found[0]))
        return found[0]


def _lookup(host: str, port: int, flags: int = 0) -> AddressInfo:
    """Raises: OSError."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)[0]
    except UnicodeError as problem:  # an empty label, or one that is too long
        raise OSError(f"{host[:80]!r} is no host name: {problem}") from problem


def _poll(connecting: socket.socket) -> int:
    poll = select.poll()
    poll.register(connecting, select.POLLOUT)
    if not poll.poll(50):
        return errno.EINPROGRESS
    return connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


def _at_most(seconds: float, patience: Patience) -> Patience:
    """No longer than `seconds` from now, either."""
    return replace(patience, deadline=min(patience.deadline, time.monotonic() + seconds))


def _half(patience: Patience) -> Patience:
    """What is left of it, halved."""
    now = time.monotonic()
    return replace(patience, deadline=now + (patience.deadline - now) / 2)
