"""Reaching a peer: at its addresses, by calling it, or through a relay; then TLS, the check of its
key, the handshake. However the connection came about, the two ends prove themselves to each other.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.stream import handshake
from atom.swarm.stream.frames import Channel, Interrupted, Patience, Purpose
from atom.swarm.stream.socket_stream import SocketStream
from atom.swarm.stream.tls import Credentials, peer_of_certificate
from atom.swarm.stream.tls_stream import TlsStream
from atom.swarm.transport.connector import Connector
from atom.swarm.transport.contacts import ContactBook, Unreachable, parse_address
from atom.swarm.transport.endpoint import Endpoint
from atom.swarm.transport.link_book import LinkBook
from atom.swarm.transport.switchboard import Switchboard

Connect = Callable[[float], SocketStream]
"""Opens a connection to the peer within these seconds, nothing proven. Raises: OSError,
PeerRefused."""


@dataclass(frozen=True)
class Way:
    """One way to a peer: at an address, through a relay, or by neither, when it is called."""

    connect: Connect
    address: str = ""
    relay: str = ""


class Dialer:
    """Opens outgoing channels; `close` cuts those that are open."""

    def __init__(
        self, endpoint: Endpoint, credentials: Credentials, switchboard: Switchboard
    ) -> None:
        self.contacts = ContactBook()
        self.links = LinkBook()
        self._endpoint = endpoint
        self._credentials = credentials
        self._switchboard = switchboard
        self._connector = Connector(endpoint.closing)
        self._lock = threading.Lock()
        self._open: set[Channel] = set()

    def dial(
        self,
        peer_id: str,
        purpose: Purpose,
        tag: bytes,
        seconds: float = math.inf,
        stop: threading.Event | None = None,
    ) -> Channel:
        """A channel to that peer and no other, within `seconds` (and the usual limits), or until
        `stop` is set.

        Raises: Unreachable; PeerRefused (the last reason) if only refusals were met.
        """
        deadline = time.monotonic() + seconds
        indirect = [self._by_call(peer_id), self._by_relay(peer_id)]
        direct = [self._directly(peer_id, stop)]
        last = self.contacts.dial_last(peer_id)
        ways = [*indirect, *direct] if last else [*direct, *indirect]
        return self._first_of(ways, peer_id, (purpose, tag), Patience(seconds, deadline, stop))

    def dial_directly(
        self, peer_id: str, purpose: Purpose, tag: bytes = b"", seconds: float = math.inf
    ) -> Channel:
        """As `dial`, at the peer's addresses only."""
        deadline = time.monotonic() + seconds
        patience = Patience(seconds, deadline)
        return self._first_of([self._directly(peer_id)], peer_id, (purpose, tag), patience)

    def open(self, peer_id: str, seconds: float) -> tuple[SocketStream, str]:
        """A connection to the first of the peer's addresses that takes one, and its host; nothing
        is proven. Raises: OSError."""
        deadline, failure = time.monotonic() + seconds, OSError("no known address")
        for address in self.contacts.addresses(peer_id):
            try:
                left = _left(seconds, deadline)
                return self._connector.connect(peer_id, address, left), _host(address)
            except OSError as error:
                failure = error
        raise failure

    def close(self) -> None:
        """Cuts all outgoing channels."""
        with self._lock:
            cut = list(self._open)
        for channel in cut:
            channel.close()

    # ---- ways

    def _directly(self, peer_id: str, stop: threading.Event | None = None) -> Iterator[Way]:
        for address in self.contacts.addresses(peer_id):
            connect = partial(self._connector.connect, peer_id, address, stop=stop)
            yield Way(connect, address=address)

    def _by_call(self, peer_id: str) -> Iterator[Way]:
        if self._switchboard.has_line(peer_id):
            yield Way(partial(self._switchboard.call, peer_id))

    def _by_relay(self, peer_id: str) -> Iterator[Way]:
        for relay in self.contacts.relays(peer_id):
            if relay not in (peer_id, self._endpoint.local.identity.peer_id):
                yield Way(partial(self._through, relay, peer_id), relay=relay)

    def _through(self, relay: str, peer_id: str, seconds: float) -> SocketStream:
        channel = self.dial_directly(relay, Purpose.RELAY, peer_id.encode(), seconds)
        assert isinstance(channel.stream, SocketStream), "relays hand over the bare connection"
        with self._lock:
            self._open.discard(channel)  # the channel inside it takes its place
        return channel.stream

    def _first_of(
        self,
        ways: list[Iterator[Way]],
        peer_id: str,
        what: tuple[Purpose, bytes],
        patience: Patience,
    ) -> Channel:
        """Each way but the last has at most half of what is left of the time: an address behind
        which nobody answers must not use up all of it."""
        refusals: list[PeerRefused] = []
        failures: list[OSError] = []
        found = [list(several) for several in ways]
        left = sum(map(len, found))
        for several in found:
            before = len(failures)
            for way in several:
                left -= 1
                try:
                    share = _half(patience) if left else patience
                    channel = self._shake_hands(way.connect, peer_id, what, share)
                except PeerRefused as refused:
                    refusals.append(refused)
                    self.contacts.led_nowhere(peer_id, way.relay)
                except Interrupted:
                    raise
                except OSError as error:
                    failures.append(error)
                    self.contacts.led_nowhere(peer_id, way.relay)
                else:
                    return self._note_found(channel, way, peer_id, what[0])
            tried_addresses = any(way.address for way in several)
            if tried_addresses and any(not _nobody(e) for e in failures[before:]):
                self.contacts.failed(peer_id)
        if refusals:
            raise refusals[-1]
        nobody = bool(failures) and all(_nobody(error) for error in failures)
        detail = "; ".join(str(error) for error in failures) or "no known address"
        raise Unreachable(f"{peer_id}: {detail}", nobody)

    def _note_found(self, channel: Channel, way: Way, peer_id: str, purpose: Purpose) -> Channel:
        channel.direct = bool(way.address)
        if channel.direct:
            self.contacts.worked(peer_id, way.address)
        if purpose in (Purpose.MESSAGES, Purpose.RING):
            self.contacts.came_there(peer_id, way.relay)
        return channel

    def _shake_hands(
        self, connect: Connect, peer_id: str, what: tuple[Purpose, bytes], whole: Patience
    ) -> Channel:
        limits, deadline = self._endpoint.limits, whole.deadline
        below = connect(_left(limits.connect_s, deadline))
        stream = TlsStream(below, self._credentials.client, server_side=False)
        channel = Channel(self._endpoint.bandwidth.limit(stream), self._gone)
        channel.purpose, channel.tag = what
        with self._lock:
            self._open.add(channel)
        try:
            patience = replace(
                Patience.within(_left(limits.handshake_s, deadline)), stop=whole.stop
            )
            stream.handshake(patience)
            certificate = stream.certificate()
            if certificate is None or peer_of_certificate(certificate) != peer_id:
                raise PeerRefused(Reason.WRONG_IDENTITY, f"that is not {peer_id}")
            local = self._endpoint.local
            handshake.greet(channel, local, peer_id, certificate, patience)
            if channel.purpose is Purpose.RELAY:
                channel.stream = stream.hand_over()  # what goes through it is limited further in
                return channel  # its welcome had to wait for the third: no round trip
            if channel.purpose is Purpose.RING:
                channel.stream = self._endpoint.bandwidth.limit_ring(stream)
        except BaseException:
            channel.close()
            raise
        assert channel.round_trip_s is not None, "shaken hands"
        self.links.met(peer_id, channel.round_trip_s)
        return channel

    def _gone(self, channel: Channel) -> None:
        with self._lock:
            self._open.discard(channel)


def _left(seconds: float, deadline: float) -> float:
    """The shorter of a limit and what is left of the caller's time; never less than nothing."""
    return max(min(seconds, deadline - time.monotonic()), 0.0)


def _half(patience: Patience) -> Patience:
    """What is left of it, halved."""
    now = time.monotonic()
    return replace(patience, deadline=now + (patience.deadline - now) / 2)


def _nobody(error: OSError) -> bool:
    return isinstance(error, ConnectionRefusedError)


def _host(address: str) -> str:
    return parse_address(address)[0]
