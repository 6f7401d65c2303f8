"""Reaching a peer: its known addresses in turn, TLS, the check of its key, the handshake."""

import contextlib
import errno
import math
import os
import select
import socket
import threading
import time
from collections.abc import Sequence

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm import handshake
from atom.swarm.endpoint import Endpoint
from atom.swarm.frames import Channel, Interrupted, Patience, Purpose
from atom.swarm.protection import after_handshake
from atom.swarm.resolver import Resolver
from atom.swarm.tls import Credentials, peer_of_certificate, tune, wrap

MAX_ADDRESSES = 8


class Unreachable(ConnectionError):
    """No known address answered. `refused`: every one of them said that nobody listens there."""

    def __init__(self, detail: str, refused: bool = False) -> None:
        super().__init__(detail)
        self.refused = refused


def parse_address(text: str) -> tuple[str, int]:
    """ "host:port" or "[v6]:port". Raises: ValueError."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or len(text) > 255 or not port.isascii() or not port.isdecimal():
        raise ValueError(f"not host:port: {text[:80]!r}")
    if not 0 < int(port[:6]) < 65536:
        raise ValueError(f"no such port: {port[:6]}")
    return host, int(port)


class AddressBook:
    """Where peers listen. The address that worked last is tried first. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[str, ...]] = {}
        self._good: dict[str, str] = {}

    def set(self, peer_id: str, addresses: Sequence[str]) -> None:
        """Replaces the peer's addresses; malformed ones and those past the eighth are left out."""
        usable = []
        for text in addresses[:MAX_ADDRESSES]:
            with contextlib.suppress(ValueError):
                parse_address(text)
                usable.append(text)
        with self._lock:
            self._known[peer_id] = tuple(usable)

    def of(self, peer_id: str) -> list[str]:
        with self._lock:
            good = self._good.get(peer_id)
            return sorted(self._known.get(peer_id, ()), key=lambda text: text != good)

    def worked(self, peer_id: str, address: str) -> None:
        with self._lock:
            self._good[peer_id] = address


class Dialer:
    """Opens outgoing channels; `close` cuts those that are open."""

    def __init__(self, endpoint: Endpoint, credentials: Credentials) -> None:
        self.addresses = AddressBook()
        self._endpoint = endpoint
        self._credentials = credentials
        self._resolver = Resolver()
        self._lock = threading.Lock()
        self._open: set[Channel] = set()

    def dial(
        self, peer_id: str, purpose: Purpose, tag: bytes, seconds: float = math.inf
    ) -> Channel:
        """A channel to that peer and no other, within `seconds` (and the usual limits).

        Raises: Unreachable; PeerRefused (the last reason) if only refusals were met.
        """
        refusals, failures = [], []
        deadline = time.monotonic() + seconds
        for address in self.addresses.of(peer_id):
            try:
                channel = self._dial_one(address, peer_id, purpose, tag, deadline)
            except PeerRefused as refused:
                refusals.append(refused)
            except OSError as error:
                failures.append(error)
            else:
                self.addresses.worked(peer_id, address)
                return channel
        if refusals:
            raise refusals[-1]
        nobody = bool(failures) and all(isinstance(e, ConnectionRefusedError) for e in failures)
        detail = "; ".join(str(error) for error in failures) or "no known address"
        raise Unreachable(f"{peer_id}: {detail}", nobody)

    def close(self) -> None:
        """Cuts all outgoing channels."""
        with self._lock:
            cut = list(self._open)
        for channel in cut:
            channel.close()

    def _dial_one(
        self, address: str, peer_id: str, purpose: Purpose, tag: bytes, deadline: float
    ) -> Channel:
        limits = self._endpoint.limits
        connected = self._connect(parse_address(address), _left(limits.connect_s, deadline))
        tune(connected)
        stream = wrap(connected, self._credentials, server_side=False)
        channel = Channel(self._endpoint.bandwidth.limit(stream), self._gone)
        channel.purpose, channel.tag = purpose, tag
        with self._lock:
            self._open.add(channel)
        try:
            patience = Patience.within(_left(limits.handshake_s, deadline))
            stream.handshake(patience)
            certificate = stream.certificate()
            if certificate is None or peer_of_certificate(certificate) != peer_id:
                raise PeerRefused(Reason.WRONG_IDENTITY, f"{address} is not {peer_id}")
            local = self._endpoint.local
            keys = handshake.greet(channel, local, peer_id, certificate, patience)
            if purpose is Purpose.RING:
                further = after_handshake(stream, purpose, local.ring_protection, keys)
                channel.stream = self._endpoint.bandwidth.limit(further)
        except BaseException:
            channel.close()
            raise
        return channel

    def _connect(self, address: tuple[str, int], seconds: float) -> socket.socket:
        """A TCP connection, given up early when the transport closes. Raises: OSError."""
        deadline = time.monotonic() + seconds
        family, kind, protocol, _, target = self._resolver.resolve(*address, seconds)
        connecting = socket.socket(family, kind, protocol)
        try:
            connecting.setblocking(False)
            code = connecting.connect_ex(target)
            while code == errno.EINPROGRESS:
                code = self._poll_connect(connecting, deadline)
            if code:
                raise OSError(code, os.strerror(code))
            connecting.setblocking(True)
        except BaseException:
            connecting.close()
            raise
        return connecting

    def _poll_connect(self, connecting: socket.socket, deadline: float) -> int:
        if self._endpoint.closing.is_set():
            raise Interrupted("closing")
        if time.monotonic() > deadline:
            return errno.ETIMEDOUT
        poll = select.poll()
        poll.register(connecting, select.POLLOUT)
        if not poll.poll(50):
            return errno.EINPROGRESS
        return connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    def _gone(self, channel: Channel) -> None:
        with self._lock:
            self._open.discard(channel)


def _left(seconds: float, deadline: float) -> float:
    """The shorter of a limit and what is left of the caller's time; never less than nothing."""
    return max(min(seconds, deadline - time.monotonic()), 0.0)
